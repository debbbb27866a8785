"""`epp explain`: why a request went where it went, from records or from a running picker."""

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
from epp.ops.picker_http import answered, newest_up
from epp.ops.records import wide_console
from epp.records.files import read_records
from epp.records.schema import Joined, join

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

_Place = TypeVar("_Place")
#: Ids that an error names.
_NAMED = 3
#: Columns of a table whose place is not known, and of the titles of its rows.
_WIDTH, _TITLE_WIDTH = 180, 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add = parser.add_argument
    add(
        "id",
        nargs="?",
        default="last",
        help="decision id, or in records the start of a single one; default: the last generation",
    )
    add("--records", type=Path, action="append", default=[], help="folder of records, one a region")
    add(
        "--url",
        action="append",
        default=[],
        help="ask running pickers, one a region: http://127.0.0.1:9090"
        " (default without records: the newest `epp up` that runs here)",
    )
    add("--request", type=Path, metavar="BODY.json", help="say what would be chosen now; reserves nothing")
    add("--path", default="/v1/chat/completions", help="of that request (%(default)s)")
    add("--json", action="store_true", help="print the record itself")
    add("--trace", action="store_true", help="write the request's path through all regions, for Perfetto")
    add("--out", type=Path, default=Path("trace.json"), help="where to (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print one decision."""
    urls, folders = arguments.url, arguments.records
    if not urls and (arguments.request or not folders):
        urls = [newest_up()]
    if arguments.request:
        path = f"preview/{arguments.path.lstrip('/')}"
        found = _asked(urls[0], path, arguments.request.read_bytes())
    elif urls:
        found = _first(partial(_asked, path=f"decisions/{quote(arguments.id, safe='')}"), urls)
    else:
        found = _first(partial(_find, decision_id=arguments.id), folders)
    if arguments.trace:
        return _trace(found, urls, folders, arguments.out)
    if arguments.json:
        print(json.dumps({**found.decision, "outcome": found.outcome}, indent=2))
        return 0
    console = wide_console()
    console.print(*explain(found.decision, found.outcome, console.width), sep="\n")
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


def _asked(url: str, path: str, body: bytes | None = None) -> Joined:
    with answered(url, path, body) as answer:
        record = json.load(answer)
    return Joined(record, record.pop("outcome", None))


def _trace(found: Joined, urls: Sequence[str], folders: Sequence[Path], out: Path) -> int:
    """Write the path of a decision's request."""
    origin, told = found.decision.get("origin_decision", found.decision["id"]), [found]
    for url in urls:
        with contextlib.suppress(EppError):
            told.append(_asked(url, f"decisions/{origin}"))
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
        newest = max(
            requests,
            key=lambda each: (each.decision["request"]["prompt_tokens"] > 0, each.decision["at"]),
            default=None,
        )
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


def explain(
    record: Mapping[str, Any], outcome: Mapping[str, Any] | None = None, width: int = _WIDTH
) -> list[RenderableType]:
    """Show a decision: what was asked, why the choice, what came of it; then the table of terms.

    Args:
        record: of the decision.
        outcome: of it.
        width: of the table; endpoints for which it has no room are left out.
    """
    room = (width - _TITLE_WIDTH) // (max(map(len, record["endpoints"])) + 3)
    found = explained(record, outcome, max(room, 2))
    # Names are escaped: an IPv6 address in brackets looks like markup, and would be left out.
    title, pick, *others = map(escape, found["columns"])
    table = Table(title)
    for name in (pick, *others):
        table.add_column(name, justify="right", style="green" if name == pick else None)
    for row in found["rows"]:
        table.add_row(*map(escape, row))
    return [escape("\n".join(found["words"])), table]
