"""A decision explained from its record: what the live page and `epp explain` show of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.console.figures import number
from epp.console.why import NO_CHANCE, SCORES, judge, why
from epp.policies.registry import unit_of
from epp.types import BACKLOG_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Signals: title, and how a value is shown.
_SIGNALS = {
    "rtt_ms": ("RTT ms", "{:,.0f}"),
    "cached_tokens": ("cached tokens", "{:,.0f}"),
    "uncached_tokens": ("uncached tokens", "{:,.0f}"),
    "queued_tokens": ("queued tokens", "{:,.0f}"),
    "pending_uncached_tokens": ("pending tokens", "{:,.0f}"),
    "running_requests": ("running requests", "{:,.0f}"),
}
#: What is known of connections to an endpoint.
_CONNECTIONS = {
    "cold_chance": ("P(new connection)", "{:.0%}"),
    "connect_ms": ("connect ms", "{:,.0f}"),
    "upload_rounds": ("upload RTTs if warm", "{:.2f}"),
}
#: Learned of each endpoint's engine class, per endpoint because one may be slower than its class.
_RATES = {
    "prefill_base_ms": ("prefill: fixed ms", "{:,.1f}"),
    "prefill_ms_per_token": ("prefill: ms/token", "{:,.4f}"),
    "decode_base_ms": ("decode: ms/token", "{:,.1f}"),
    "decode_ms_per_request": ("decode: +ms/running", "{:,.1f}"),
}


#: Terms that are shown otherwise than as parts of a cost: title, and how a value is shown.
_OTHERS = {
    "predicted_ms": ("predicted ms", "{:,.1f}"),
    "congestion_ms": ("latency added to others ms", "{:,.1f}"),
    "ttft_ms": ("predicted TTFT ms", "{:,.1f}"),
    "itl_ms": ("predicted ITL ms", "{:,.1f}"),
    "probability": ("probability, exploring", "{:.1%}"),
    "before_exploring": ("cost before exploring", "{:,.1f}"),
    "explored": ("explored", "{:.0f}"),
    "fallback": ("predicted by", ""),
}
#: Endpoints that are shown at most.
_MOST = 50


def explained(
    record: Mapping[str, Any], outcome: Mapping[str, Any] | None = None, most: int = _MOST
) -> dict[str, Any]:
    """Explain a decision.

    Args:
        record: of it.
        outcome: what came of it.
        most: endpoints to show.

    Returns:
        ``words``: lines; ``columns``: endpoints, the chosen endpoint first, the others by cost, behind an
            empty title;
        ``rows``: cost, terms and signals, each behind its title.
    """
    chosen, costs = record["chosen"], record["costs"]
    order = sorted(range(len(costs)), key=lambda row: (row != chosen, costs[row]))
    words = [
        _head(record),
        why(record),
        *_legs(record),
        *_ending(record, outcome),
        *_basis(record),
        *_notes(record),
    ]
    if left_out := len(order[most:]):
        words.append(f"not shown: {left_out} of higher cost")
    return {
        "words": words,
        "columns": ["", *(record["endpoints"][row] for row in order[:most])],
        "rows": [[title, *(cells[row] for row in order[:most])] for title, cells in _rows(record)],
    }


def _head(record: Mapping[str, Any]) -> str:
    """Tell what was asked."""
    request = record["request"]
    size, tokens = record["text_bytes"], request["prompt_tokens"]
    counted = f" ({size / tokens:.2f} bytes/token)" if size and tokens else ""
    return (
        f"{record['id']}  policy {record['policy']} ({record['basis']})"
        f"  model {request['model'] or '-'}  prompt {tokens:,} tokens{counted}"
    )


def _legs(record: Mapping[str, Any]) -> Iterator[str]:
    """Tell who does which part, and what was known of those who do not answer."""
    for leg in record.get("legs", ()):
        role, endpoint = leg["role"], leg["endpoint"]
        if (seen := record["workers"].get(role)) is None or endpoint not in seen["endpoints"]:
            yield f"{role} on {endpoint}"
            continue
        row = seen["endpoints"].index(endpoint)
        cached, pending, running = (
            seen["signals"][name][row]
            for name in ("cached_tokens", "pending_uncached_tokens", "running_requests")
        )
        yield (
            f"{role} on {endpoint}, one of {len(seen['endpoints'])}: {cached:,.0f} tokens cached,"
            f" {pending:,.0f} pending, {running:,.0f} running requests,"
            f" {seen['extra'][BACKLOG_MS][row]:,.1f} ms on its link"
        )


def _basis(record: Mapping[str, Any]) -> Iterator[str]:
    """Tell by which weights and models it was decided."""
    weights = record["weights"] or record["params"].get("scorer_weights", {})  # llm-d's, by its names
    if weights:
        words = ", ".join(f"{name} {value:g}" for name, value in weights.items())
        yield f"weights: {words}  (version {record['weights_version']})"
    if model := record["params"].get("model"):
        yield f"reward model {model}"


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Give title and cells: cost, probability, terms and signals."""
    if any(record["regions"]):
        yield "region", record["regions"]
    # Scores of llm-d's plugins, by the names of its configuration, are 0..1.
    scores, unit = record["policy"] in SCORES, unit_of(record["policy"])
    shape = "{:,.3f}" if scores else "{:,.1f}"
    costs = ["-" if scores and cost >= NO_CHANCE else shape.format(cost) for cost in record["costs"]]
    yield f"cost ({unit})" if unit else "cost", costs
    yield "probability", [f"{chance:.0%}" for chance in record["probabilities"]]
    for name, column in record["terms"].items():
        title, form = _OTHERS.get(name, (name if scores else f"{name} term", shape))
        yield title, [form.format(value) if form else judge(value) for value in column]
    signals, unknown = record["signals"], record["unknown"]
    # Where no connection had a chance to be cold nobody told of connections.
    shown = _SIGNALS | (_CONNECTIONS if any(signals["cold_chance"]) else {}) | _RATES
    for name, (title, shape) in shown.items():
        filled = unknown.get(name, ())
        yield title, [shape.format(x) + "?" * (row in filled) for row, x in enumerate(signals[name])]
        if name == "rtt_ms" and record["rtt_sources"]:
            sources = {row: source for source, rows in record["rtt_sources"].items() for row in rows}
            yield "RTT source", [sources.get(row, "-") for row in range(len(signals[name]))]
        if name == "cached_tokens" and "cached_sources" in record:
            sources = {row: source for source, rows in record["cached_sources"].items() for row in rows}
            yield "cached by", [sources.get(row, "estimate") for row in range(len(signals[name]))]


def _ending(record: Mapping[str, Any], outcome: Mapping[str, Any] | None) -> Iterator[str]:
    """Tell what came of it."""
    if outcome is None:
        return
    expected = record["signals"]["cached_tokens"][record["chosen"]]
    status = f" with status {outcome['status']}" if outcome["status"] else ""
    failure, picked, served = outcome["failure"], outcome["endpoint"], outcome["served"]
    yield (
        f"{outcome['cause']}{status}: TTFT {number(outcome['ttft_ms'], 1)} ms,"
        f" E2E {number(outcome['e2e_ms'], 1)} ms, {number(outcome['completion_tokens'])} output tokens,"
        f" {number(outcome['prompt_tokens'])} prompt tokens, of which {number(outcome['cached_tokens'])} were"
        f" cached and {number(expected)} expected to be"
    )
    if failure:
        yield f"the engine failed it: error {failure['status']} {failure['code']}"
    if outcome.get("honoured") is False:
        yield f"Envoy did not honour the decision: it does not know {picked} and used {served}"
    elif served not in ("", picked):
        yield f"{served} answered in the end, not the chosen endpoint"


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Tell who else could have been chosen, and who could not."""
    names, words = record["endpoints"], list[str]()
    if record["fallbacks"]:
        words.append("fallbacks " + ", ".join(names[row] for row in record["fallbacks"]))
    words += [f"filtered out by {rule}: {', '.join(out)}" for rule, out in record["excluded"].items()]
    if any(record["unknown"].values()):
        words.append("? = no data, the worst known value is assumed")
    if words:
        yield "; ".join(words)
