"""`epp explain`: the table of terms that decided a request, from records or from a running picker."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from rich.markup import escape
from rich.table import Table

from epp.console.explain import explained
from epp.errors import EppError
from epp.ops.path_trace import hops_of, trace
from epp.ops.picker_http import answered
from epp.ops.records import DEFAULT_FOLDER, wide_console
from epp.records.files import read_records
from epp.records.schema import Joined, join

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

_Place = TypeVar("_Place")
#: Ids that an error names.
_NAMED = 3
#: Up to so many endpoints stand side by side, which fits 80 columns; more stand below each other.
_SIDE_BY_SIDE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "id", nargs="?", default="last", help="decision id, or the start of a single one; default: the last"
    )
    parser.add_argument(
        "--records", type=Path, action="append", help=f"folder of records, one a region ({DEFAULT_FOLDER})"
    )
    parser.add_argument(
        "--url", action="append", help="ask running pickers instead, one a region: http://127.0.0.1:9090"
    )
    parser.add_argument("--json", action="store_true", help="print the record itself")
    parser.add_argument(
        "--trace", action="store_true", help="write the request's path through all regions, for Perfetto"
    )
    parser.add_argument("--out", type=Path, default=Path("trace.json"), help="where to (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print one decision."""
    urls, folders = arguments.url or [], arguments.records or [DEFAULT_FOLDER]
    if urls:
        found = _first(partial(_asked, decision_id=arguments.id), urls)
    else:
        found = _first(partial(_find, decision_id=arguments.id), folders)
    if arguments.trace:
        return _trace(found, urls, folders, arguments.out)
    if arguments.json:
        print(json.dumps({**found.decision, "outcome": found.outcome}, indent=2))
        return 0
    wide_console().print(*explain(found.decision, found.outcome), sep="\n")
    return 0


def _first(find: Callable[[_Place], Joined], places: Sequence[_Place]) -> Joined:
    """Find a decision at the first place that has it.

    Raises:
        EppError: none has; says why the last has not.
    """
    *others, last = places
    for place in others:
        with contextlib.suppress(EppError):
            return find(place)
    return find(last)


def _asked(url: str, decision_id: str) -> Joined:
    with answered(url, f"decisions/{quote(decision_id, safe='')}") as answer:
        return Joined(json.load(answer), None)


def _trace(found: Joined, urls: Sequence[str], folders: Sequence[Path], out: Path) -> int:
    """Write the path of a decision's request; running pickers know no outcomes."""
    origin, told = found.decision.get("origin_decision", found.decision["id"]), [found]
    for url in urls:
        with contextlib.suppress(EppError):
            told.append(_asked(url, origin))
    on_file = chain.from_iterable(join(read_records(folder)) for folder in folders)
    hops = hops_of(origin, told if urls else on_file)
    try:
        out.write_text(json.dumps(trace(hops)))
    except OSError as error:
        raise EppError(f"{out} cannot be written: {error.strerror}") from error
    print(f"{out}: {len(hops)} regions; open it at https://ui.perfetto.dev")
    return 0


def _find(folder: Path, decision_id: str) -> Joined:
    requests = join(read_records(folder))
    if decision_id == "last":
        newest = max(requests, key=lambda each: float(each.decision["at"]), default=None)
        found = [] if newest is None else [newest]
    else:
        found = [each for each in requests if each.decision["id"].startswith(decision_id)]
        found = [each for each in found if each.decision["id"] == decision_id] or found
    if not found:
        raise EppError(
            f"no decision {decision_id!r} in {folder} (--records FOLDER or --url http://HOST:PORT)"
        )
    if len(found) > 1:
        shown = ", ".join(
            [*(each.decision["id"] for each in found[:_NAMED]), *["..."][: len(found) - _NAMED]]
        )
        raise EppError(f"{len(found)} decisions in {folder} begin with {decision_id!r}: {shown}")
    return found[0]


def explain(record: Mapping[str, Any], outcome: Mapping[str, Any] | None = None) -> list[RenderableType]:
    """Show a decision: what was asked, why the choice, what came of it; then the table of terms."""
    found = explained(record, outcome)
    # Names are escaped: an IPv6 address in brackets looks like markup, and would be left out.
    rows = [[escape(cell) for cell in row] for row in found["rows"]]
    titles, chosen, table = map(escape, found["columns"]), found["chosen"], Table()
    if len(rows) > _SIDE_BY_SIDE:
        for title in titles:
            table.add_column(title, justify="left" if title in ("endpoint", "region") else "right")
        for at, row in enumerate(rows):
            table.add_row(*row, style="green" if at == chosen else None)
    else:
        table.add_column(next(titles))
        for at, row in enumerate(rows):
            table.add_column(row[0], justify="right", style="green" if at == chosen else None)
        for line in zip(titles, *(row[1:] for row in rows), strict=True):
            table.add_row(*line)
    return [escape("\n".join(found["words"])), table]
