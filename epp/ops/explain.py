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

from epp.errors import EppError
from epp.ops.path_trace import hops_of, trace
from epp.ops.picker_http import answered
from epp.ops.records import DEFAULT_FOLDER, number, wide_console
from epp.policies.lodestar import FALLBACKS
from epp.records.files import read_records
from epp.records.schema import Joined, join

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

_Place = TypeVar("_Place")
#: A decision, and its outcome where that is on record.
_Found = tuple[dict[str, Any], dict[str, Any] | None]
#: Learned of each endpoint's engine class, per endpoint because one may be slower than its class.
_RATES = (
    ("prefill_base_ms", "prefill: fixed ms", "{:,.1f}", 1.0),
    ("prefill_ms_per_token", "prefill: ms/1k tok.", "{:,.1f}", 1e3),
    ("decode_base_ms", "decode: ms/token", "{:,.1f}", 1.0),
    ("decode_ms_per_request", "decode: +ms/running", "{:,.1f}", 1.0),
)
#: What is known of connections to it.
_CONNECTIONS = (
    ("cold_chance", "P(new connection)", "{:.0%}", 1.0),
    ("connect_ms", "connect ms", "{:,.0f}", 1.0),
    ("upload_rounds", "upload RTTs if warm", "{:.2f}", 1.0),
)
#: Ids that an error names.
_NAMED = 3
_SHOWN = (
    ("rtt_ms", "RTT ms"),
    ("cached_tokens", "cached tokens"),
    ("uncached_tokens", "uncached tokens"),
    ("queued_tokens", "queued tokens"),
    ("pending_uncached_tokens", "pending tokens"),
    ("running_requests", "running requests"),
)


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
    folders = arguments.records or [DEFAULT_FOLDER]
    if arguments.url:
        record, outcome = _first(partial(_asked, decision_id=arguments.id), arguments.url)
    else:
        record, outcome = _first(partial(_find, decision_id=arguments.id), folders)
    if arguments.trace:
        return _trace(record, arguments.url or (), folders, arguments.out)
    if arguments.json:
        print(json.dumps({**record, "outcome": outcome}, indent=2))
        return 0
    console = wide_console()
    for part in explain(record, outcome):
        console.print(part)
    return 0


def _first(find: Callable[[_Place], _Found], places: Sequence[_Place]) -> _Found:
    """Find a decision at the first place that has it.

    Raises:
        EppError: none has; says why the last has not.
    """
    *others, last = places
    for place in others:
        with contextlib.suppress(EppError):
            return find(place)
    return find(last)


def _asked(url: str, decision_id: str) -> _Found:
    with answered(url, f"decisions/{quote(decision_id, safe='')}") as answer:
        return json.load(answer), None


def _trace(record: dict[str, Any], urls: Sequence[str], folders: Sequence[Path], out: Path) -> int:
    """Write the path of a decision's request; running pickers know no outcomes."""
    origin, told = record.get("origin_decision", record["id"]), [Joined(record, None)]
    for url in urls:
        with contextlib.suppress(EppError):
            told.append(Joined(*_asked(url, origin)))
    on_file = chain.from_iterable(join(read_records(folder)) for folder in folders)
    hops = hops_of(origin, told if urls else on_file)
    try:
        out.write_text(json.dumps(trace(hops)))
    except OSError as error:
        raise EppError(f"{out} cannot be written: {error.strerror}") from error
    print(f"{out}: {len(hops)} regions; open it at https://ui.perfetto.dev")
    return 0


def _find(folder: Path, decision_id: str) -> _Found:
    found: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None
    alike: dict[str, None] = {}
    for record in read_records(folder):
        if record["kind"] == "decision":
            if decision_id == "last":
                wanted = found is None or record["at"] >= found["at"]
            else:
                wanted = record["id"].startswith(decision_id)
                if wanted:
                    alike[record["id"]] = None
                    wanted = found is None or record["id"] == decision_id
            if wanted:
                found, outcome = record, None
        elif record["kind"] == "outcome" and found is not None and record["id"] == found["id"]:
            outcome = record
            if found["id"] == decision_id:
                break
    if found is None:
        raise EppError(
            f"no decision {decision_id!r} in {folder} (--records FOLDER or --url http://HOST:PORT)"
        )
    if len(alike) > 1 and found["id"] != decision_id:
        shown = ", ".join([*list(alike)[:_NAMED], *["..."][: len(alike) - _NAMED]])
        raise EppError(f"{len(alike)} decisions in {folder} begin with {decision_id!r}: {shown}")
    return found, outcome


def explain(record: dict[str, Any], outcome: dict[str, Any] | None = None) -> list[RenderableType]:
    """A decision for people: what was asked, the table of terms, why the choice, what came of it."""
    request = record["request"]
    told = record["weights"] or record["params"].get("scorer_weights", {})  # llm-d's, by its names
    weights = ", ".join(f"{escape(name)} {value:g}" for name, value in told.items())
    model = record["params"].get("model")
    head = (
        f"[bold]{escape(record['id'])}[/bold]"
        f"  policy [bold]{escape(record['policy'])}[/bold] ({escape(record['basis'])})"
        f"  model {escape(request['model']) or '-'}  prompt {request['prompt_tokens']:,} tokens"
        + _counted(record)
        + _expected(record)
        + (f"\nweights: {weights}  (version {escape(record['weights_version'])})" if weights else "")
        + (f"\nreward model {escape(str(model))}" if model else "")
    )
    parts: list[RenderableType] = [head, _table(record), _verdict(record)]
    return parts if outcome is None else [*parts, _ending(record, outcome)]


def _counted(record: dict[str, Any]) -> str:
    """How the tokens were counted, where a record tells."""
    size, tokens = record["text_bytes"], record["request"]["prompt_tokens"]
    return f" ({size / tokens:.2f} bytes/token)" if size and tokens else ""


def _expected(record: dict[str, Any]) -> str:
    """How long the first token takes where it comes soonest, which some policies price by what is usual."""
    least_ms = record["least_first_token_ms"]
    if not least_ms:
        return ""
    usual_ms = record["request"]["usual_first_token_ms"]
    usual = f", usually {usual_ms:,.0f}" if usual_ms else ""
    return f"\nfirst token in {least_ms:,.0f} ms at best{usual}"


def _by(code: float) -> str:
    """Who predicted for an endpoint, by a learned policy's term; records may be of a later version."""
    return FALLBACKS[int(code)] or "model" if code < len(FALLBACKS) else f"reason {code:g}"


#: Terms of learned policies that are no costs: title and how a value is shown.
_OF_LEARNED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "predicted_ms": ("predicted ms", "{:,.1f}".format),
    "congestion_ms": ("latency added to others ms", "{:,.1f}".format),
    "ttft_ms": ("predicted TTFT ms", "{:,.1f}".format),
    "itl_ms": ("predicted ITL ms", "{:,.1f}".format),
    "probability": ("probability, exploring", "{:.1%}".format),
    "before_exploring": ("cost before exploring", "{:,.1f}".format),
    "explored": ("explored", lambda value: "yes" if value else "-"),
    "fallback": ("predicted by", _by),
}

#: Up to so many endpoints stand side by side, which fits 80 columns; more stand below each other.
_SIDE_BY_SIDE = 4


def _table(record: dict[str, Any]) -> Table:
    """Endpoints in the order of their cost, with what is known of each and the terms of its cost."""
    order = sorted(range(len(record["endpoints"])), key=lambda row: record["costs"][row])
    # Names are escaped: an IPv6 address in brackets looks like markup, and would be left out.
    head = [(escape(record["endpoints"][row]), escape(record["regions"][row])) for row in order]
    lines = _lines(record, order)
    table = Table()
    if len(order) > _SIDE_BY_SIDE:
        for title in ("endpoint", "region", *(title for title, _, _ in lines)):
            table.add_column(title, justify="left" if title in ("endpoint", "region") else "right")
        for place, row in enumerate(order):
            cells = [values[place] for _, values, _ in lines]
            table.add_row(*head[place], *cells, style="green" if row == record["chosen"] else None)
        return table
    table.add_column("")
    for (address, region), row in zip(head, order, strict=True):
        style = "green" if row == record["chosen"] else None
        table.add_column(f"{region}\n{address}" if region else address, justify="right", style=style)
    last = [title for title, _, kind in lines if kind == "dim"][-1]
    for title, values, kind in lines:
        table.add_row(title, *values, style=kind, end_section=title == last)
    return table


def _lines(record: dict[str, Any], order: list[int]) -> list[tuple[str, list[str], str | None]]:
    """Title, one cell per endpoint in the order given, and style: signals, terms, cost and probability."""
    unknown = {name: set(rows) for name, rows in record["unknown"].items()}
    lines: list[tuple[str, list[str], str | None]] = []
    for name, title in _SHOWN:
        column, filled = record["signals"][name], unknown.get(name, ())
        cells = [f"{column[row]:,.0f}" + ("?" if row in filled else "") for row in order]
        lines.append((title, cells, "dim"))
        if name == "rtt_ms" and record["rtt_sources"]:
            told = {row: source for source, rows in record["rtt_sources"].items() for row in rows}
            lines.append(("RTT source", [escape(told.get(row, "-")) for row in order], "dim"))
    # Where no connection had a chance to be cold nobody told of connections.
    connections = _CONNECTIONS if any(record["signals"]["cold_chance"]) else ()
    for name, title, shape, scale in (*connections, *_RATES):
        column = record["signals"][name]
        lines.append((title, [shape.format(column[row] * scale) for row in order], "dim"))
    # Scores of llm-d's plugins, by the names of its configuration, are 0..1.
    kind, shape = ("", "{:,.3f}") if record["policy"] == "llm-d-profile" else (" term", "{:,.1f}")
    for name, column in record["terms"].items():
        title, cell = _OF_LEARNED.get(name, (f"{escape(name)}{kind}", shape.format))
        lines.append((title, [cell(column[row]) for row in order], None))
    costs = [record["costs"][row] for row in order]
    lines.append(
        ("cost", ["-" if kind == "" and cost >= 1e8 else shape.format(cost) for cost in costs], "bold")
    )
    lines.append(("probability", [f"{record['probabilities'][row]:.0%}" for row in order], None))
    return lines


def _verdict(record: dict[str, Any]) -> str:
    names, chosen = [escape(name) for name in record["endpoints"]], record["chosen"]
    words = [f"picked [bold green]{names[chosen]}[/bold green]"]
    terms = record["terms"]
    if terms.get("explored", [0.0] * len(names))[chosen]:
        words.append("explored: random among all")
    elif "fallback" in terms and terms["fallback"][chosen]:
        words.append(f"no prediction, so the heuristic decided: {_by(terms['fallback'][chosen])}")
    elif "predicted_ms" in terms:
        words.append(f"predicted {terms['predicted_ms'][chosen]:,.1f} ms")
    if record["tied"] > 1:
        band = f" within {record['tie_band']:.1%}" if record["tie_band"] else ""
        words.append(f"random among {record['tied']} tied{band} at the lowest cost")
    if record["fallbacks"]:
        words.append("fallbacks " + ", ".join(names[row] for row in record["fallbacks"]))
    words += [escape(f"filtered out by {rule}: {', '.join(out)}") for rule, out in record["excluded"].items()]
    if any(record["unknown"].values()):
        words.append("? = no data, the worst known value is assumed")
    return "; ".join(words)


def _ending(record: dict[str, Any], outcome: dict[str, Any]) -> str:
    expected = record["signals"]["cached_tokens"][record["chosen"]]
    status = f" with status {outcome['status']}" if outcome["status"] else ""
    return (
        f"{escape(outcome['cause'])}{status}: TTFT {number(outcome['ttft_ms'], 1)} ms,"
        f" E2E {number(outcome['e2e_ms'], 1)} ms, {number(outcome['completion_tokens'])} output tokens,"
        f" {number(outcome['cached_tokens'])} prompt tokens cached, {number(expected)} expected"
        " (- = not reported)" + _not_honoured(outcome)
    )


def _not_honoured(outcome: dict[str, Any]) -> str:
    if outcome.get("honoured") is not False:
        return ""
    picked, served = escape(outcome["endpoint"]), escape(outcome["served"])
    return (
        f"\n[bold red]Envoy did not honour the pick[/bold red]: it does not know {picked} and used {served}"
    )
