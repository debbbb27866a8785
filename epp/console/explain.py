"""A decision explained from its record: what the live page and `epp explain` show of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.console.figures import number
from epp.policies.base import WORTH_TERM
from epp.policies.lodestar import FALLBACKS

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


def _by(code: float) -> str:
    """Name who predicted for an endpoint, by a learned policy's term; records may be of a later version."""
    return FALLBACKS[int(code)] or "model" if code < len(FALLBACKS) else f"reason {code:g}"


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
#: Terms that are parts of no cost.
_NO_COSTS = (_OTHERS.keys() | {WORTH_TERM}) - {"predicted_ms", "congestion_ms"}


def costs_of(terms: Mapping[str, float]) -> dict[str, float]:
    """Choose from an endpoint's terms the parts of its cost."""
    return {name: round(value, 3) for name, value in terms.items() if name not in _NO_COSTS}


def explained(record: Mapping[str, Any], outcome: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Explain a decision.

    Returns:
        ``words``: lines; ``columns``: titles; ``rows``: cells of each endpoint, by its cost; ``terms``: the
        parts of each one's cost; ``chosen``: which row was picked.
    """
    order = sorted(range(len(record["costs"])), key=record["costs"].__getitem__)
    columns = dict(_columns(record))
    return {
        "words": [*_head(record), _verdict(record), *([] if outcome is None else _ending(record, outcome))],
        "columns": [*columns],
        "rows": [[cells[row] for cells in columns.values()] for row in order],
        "terms": [costs_of({name: each[row] for name, each in record["terms"].items()}) for row in order],
        "chosen": order.index(record["chosen"]),
    }


def _head(record: Mapping[str, Any]) -> Iterator[str]:
    """Tell what was asked, and by which weights and models it was decided."""
    request = record["request"]
    size, tokens = record["text_bytes"], request["prompt_tokens"]
    counted = f" ({size / tokens:.2f} bytes/token)" if size and tokens else ""
    yield (
        f"{record['id']}  policy {record['policy']} ({record['basis']})"
        f"  model {request['model'] or '-'}  prompt {tokens:,} tokens{counted}"
    )
    # Some policies price the first token by what is usual.
    if least_ms := record["least_first_token_ms"]:
        usual_ms = request["usual_first_token_ms"]
        yield f"first token in {least_ms:,.0f} ms at best" + (
            f", usually {usual_ms:,.0f}" if usual_ms else ""
        )
    weights = record["weights"] or record["params"].get("scorer_weights", {})  # llm-d's, by its names
    if weights:
        words = ", ".join(f"{name} {value:g}" for name, value in weights.items())
        yield f"weights: {words}  (version {record['weights_version']})"
    if model := record["params"].get("model"):
        yield f"reward model {model}"


def _columns(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Give title and cells: endpoints, cost, probability, terms and signals."""
    yield "endpoint", record["endpoints"]
    if any(record["regions"]):
        yield "region", record["regions"]
    # Scores of llm-d's plugins, by the names of its configuration, are 0..1.
    scores = record["policy"] == "llm-d-profile"
    shape = "{:,.3f}" if scores else "{:,.1f}"
    yield "cost", ["-" if scores and cost >= 1e8 else shape.format(cost) for cost in record["costs"]]
    yield "probability", [f"{chance:.0%}" for chance in record["probabilities"]]
    for name, column in record["terms"].items():
        title, form = _OTHERS.get(name, (name if scores else f"{name} term", shape))
        yield title, [form.format(value) if form else _by(value) for value in column]
    signals, unknown = record["signals"], record["unknown"]
    # Where no connection had a chance to be cold nobody told of connections.
    shown = _SIGNALS | (_CONNECTIONS if any(signals["cold_chance"]) else {}) | _RATES
    for name, (title, shape) in shown.items():
        filled = unknown.get(name, ())
        yield title, [shape.format(x) + "?" * (row in filled) for row, x in enumerate(signals[name])]
        if name == "rtt_ms" and record["rtt_sources"]:
            sources = {row: source for source, rows in record["rtt_sources"].items() for row in rows}
            yield "RTT source", [sources.get(row, "-") for row in range(len(signals[name]))]


def _verdict(record: Mapping[str, Any]) -> str:
    names, chosen, terms = record["endpoints"], record["chosen"], record["terms"]
    words = [f"picked {names[chosen]}"]
    if "explored" in terms and terms["explored"][chosen]:
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
    words += [f"filtered out by {rule}: {', '.join(out)}" for rule, out in record["excluded"].items()]
    if any(record["unknown"].values()):
        words.append("? = no data, the worst known value is assumed")
    return "; ".join(words)


def _ending(record: Mapping[str, Any], outcome: Mapping[str, Any]) -> Iterator[str]:
    expected = record["signals"]["cached_tokens"][record["chosen"]]
    status = f" with status {outcome['status']}" if outcome["status"] else ""
    yield (
        f"{outcome['cause']}{status}: TTFT {number(outcome['ttft_ms'], 1)} ms,"
        f" E2E {number(outcome['e2e_ms'], 1)} ms, {number(outcome['completion_tokens'])} output tokens,"
        f" {number(outcome['cached_tokens'])} prompt tokens cached, {number(expected)} expected"
        " (- = not reported)"
    )
    if outcome.get("honoured") is False:
        picked, served = outcome["endpoint"], outcome["served"]
        yield f"Envoy did not honour the pick: it does not know {picked} and used {served}"
