"""Why a request went where it went, in one sentence: what spoke for the pick, and what against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.policies.base import WORTH_TERM
from epp.policies.lodestar import FALLBACKS
from epp.policies.registry import create, draws
from epp.request.recent import PREVIEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: What terms of a cost are counted in, by policy; those of the others are counts and places.
_MS = ("gorgo-ms", "local-first", "laar", "laar-paper", "lodestar")
UNITS = {**dict.fromkeys(_MS, "ms"), "gorgo": "tokens", "least-load": "tokens"}
#: Its terms are scores.
SCORES = "llm-d-profile"
#: Costs of `SCORES` without a chance.
NO_CHANCE = 1e8
#: Terms that are parts of no cost.
NO_COSTS = frozenset(
    ("ttft_ms", "itl_ms", "probability", "before_exploring", "explored", "fallback", "tried", WORTH_TERM)
)
_LABELS = {"predicted_ms": "predicted latency", "congestion_ms": "latency added to others"}
#: Terms below this share of the largest difference are not worth words; a sentence has room for so many.
_LEAST_SHARE, _MOST_TERMS = 0.05, 3


def costs_of(terms: Mapping[str, float]) -> dict[str, float]:
    """Choose from an endpoint's terms the parts of its cost."""
    return {name: round(value, 3) for name, value in terms.items() if name not in NO_COSTS}


def judge(code: float) -> str:
    """Name who predicted for an endpoint, by a learned policy's term; records may be of a later version."""
    return FALLBACKS[int(code)] or "model" if code < len(FALLBACKS) else f"reason {code:g}"


def why(record: Mapping[str, Any]) -> str:
    """Say why an endpoint was picked, against the runner-up."""
    names, costs, chosen, held = (record[name] for name in ("endpoints", "costs", "chosen", "held_back"))
    others = [row for row, cost in enumerate(costs) if row != chosen and not _is_out(record, cost)]
    verb = "would be" if record["id"] == PREVIEW else "was"
    words = f"{names[chosen]} {verb} chosen"
    if not others:
        words += f" because {_alone(record)}"
    elif reason := _without_costs(record):
        words += f" {reason}"
    elif not (free := [row for row in others if row not in held]):
        words += " because slow start holds back all others"
    else:
        other = min(free, key=costs.__getitem__)
        words += f" over {names[other]} because {_compared(record, other)}"
        if cheaper := [names[row] for row in held if costs[row] < costs[chosen]]:
            words += f"; slow start holds back {_listed(cheaper)}, at less cost"
    if record["basis"] == "balance":
        words += "; there is no prompt to price, so that load alone decides"
    return words


def _is_out(record: Mapping[str, Any], cost: float) -> bool:
    return bool(record["policy"] == SCORES and cost >= NO_CHANCE)


def _alone(record: Mapping[str, Any]) -> str:
    """Say why no other endpoint was asked."""
    excluded = record["excluded"]
    if "stored-response" in excluded:
        return "it stores the response that the request goes on from"
    if len(record["endpoints"]) > 1:
        return "it alone passes the profile's filters"
    out = ", ".join(f"{rule} ruled out {len(names)}" for rule, names in excluded.items())
    return f"it alone was left: {out}" if out else "the pool has no other endpoint"


def _without_costs(record: Mapping[str, Any]) -> str:
    """Say what decided where it was not the difference of two costs; empty where it was."""
    terms, chosen, tied = record["terms"], record["chosen"], record["tied"]

    def term(name: str) -> float:
        return float(terms[name][chosen]) if name in terms else 0.0

    if term("explored"):
        return "by exploring: a draw among all"
    if "place" in terms:
        is_prefix = record["policy"] == "prefix-hash" or record["params"].get("key") == "prefix"
        what = "what begins like its prompt" if is_prefix else "its session"
        home = f"the endpoint to which {what} belongs has no room"
        return f"because {home if term('place') else f'{what} belongs there'}"
    if tied > 1:
        band = record["tie_band"]
        how = f"within {band:.1%} of the lowest cost" if band else "at the lowest cost"
        return f"by a draw among {tied} {how}"
    if "explored" not in terms and draws(record["policy"]) and record["probabilities"][chosen] < 1.0:
        return f"by a draw, with a chance of {record['probabilities'][chosen]:.0%}"
    if term("fallback"):
        return f"because there is no prediction and the heuristic decided: {judge(term('fallback'))}"
    if "turns" in terms:
        return "because it was its turn"
    return ""


def _compared(record: Mapping[str, Any], other: int) -> str:
    """Say which terms are better than another endpoint's and which are worse, by what they cost."""
    chosen, costs = record["chosen"], record["costs"]
    if "elsewhere" in record["terms"] and record["terms"]["elsewhere"][other] > 0.0:
        return "its region goes first while it has room or no other is much cheaper"
    price = _scores(record) if record["policy"] == SCORES else costs_of
    mine, theirs = (
        price({name: column[row] for name, column in record["terms"].items()}) for row in (chosen, other)
    )
    deltas = {name: value - theirs[name] for name, value in mine.items()}
    ordered = sorted(filter(deltas.get, deltas), key=lambda name: -abs(deltas[name]))
    told = [name for name in ordered if abs(deltas[name]) > _LEAST_SHARE * abs(deltas[ordered[0]])]
    better, worse = (
        [_said(record, other, name, deltas[name]) for name in told if (deltas[name] < 0.0) is good]
        for good in (True, False)
    )
    total = costs[chosen] - costs[other]
    if not better or abs(sum(deltas.values()) - total) > 0.01 + 1e-6 * abs(total):
        by = [f"{_label(name)} ({mine[name]:,.4g} against {theirs[name]:,.4g})" for name in ordered]
        return f"{record['policy']} ranks it first" + (f" by {_listed(by)}" if by else "")
    if not worse:
        against = "little" if any(delta > 0.0 for delta in deltas.values()) else "nothing"
        return f"it has {_listed(better)}, and {against} speaks against it"
    is_one = len(better) == 1 and " less " in better[0]
    return f"{_listed(better)} {'outweighs' if is_one else 'outweigh'} {_listed(worse)}"


def _scores(record: Mapping[str, Any]) -> Callable[[Mapping[str, float]], dict[str, float]]:
    """Return what makes parts of a cost of scores: by their weights, the higher the cheaper."""
    policy: Any = create(SCORES)
    weights = record["params"].get("scorer_weights", policy.scorer_weights)
    return lambda terms: {name: -weights[name] * terms[name] for name in weights if name in terms}


def _said(record: Mapping[str, Any], other: int, name: str, delta: float) -> str:
    """Put a term's difference into words."""
    size, unit = abs(delta), "ms" if name.endswith("_ms") else UNITS.get(record["policy"], "")
    amount = f"{size:,.0f}" if size >= 10.0 else f"{size:.2g}"
    if record["policy"] == SCORES:
        return f"{amount} {'more' if delta < 0.0 else 'less'} by {name}"
    cached = record["signals"]["cached_tokens"]
    tokens = cached[record["chosen"]] - cached[other]
    if name == "prefill" and tokens and (tokens > 0.0) is (delta < 0.0):
        cost = f" ({amount} ms)" if unit == "ms" else ""
        return f"{abs(tokens):,.0f} {'more' if tokens > 0.0 else 'fewer'} cached tokens{cost}"
    amount, less = (f"{amount} {unit}", "less") if unit else (amount, "fewer")
    return f"{amount} {less if delta < 0.0 else 'more'} {_label(name)}"


def _label(name: str) -> str:
    return _LABELS.get(name, name.removesuffix("_ms").replace("_", " "))


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    shown = [*first, last][:_MOST_TERMS]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
