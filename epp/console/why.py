"""Why a request went where it went, in one sentence: what spoke for the endpoint, and what against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.llmd.policies.profile import LlmDProfile
from epp.policies.base import WORTH_TERM
from epp.policies.lodestar import FALLBACKS
from epp.policies.registry import unit_of
from epp.request.recent import PREVIEW

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Units of costs whose terms are told in them; those of other policies are counts and places.
_AMOUNTS = ("ms", "tokens")
#: Policies whose terms are scores.
SCORES = frozenset(("llm-d-profile", "llm-d-stages"))
#: Costs of `SCORES` without a chance.
NO_CHANCE = 1e8
#: Terms that are parts of no cost.
NO_COSTS = frozenset(
    ("ttft_ms", "itl_ms", "probability", "before_exploring", "explored", "fallback", "tried", WORTH_TERM)
)
#: What a request waits for that waits for no engine of its own.
ANY_ENGINE = "any engine"
#: What an agent's turn is held for.
PLACE = "a place of its context in a KV cache"
#: Terms below this share of the largest difference are not worth words.
_LEAST_SHARE = 0.1


def costs_of(terms: Mapping[str, float]) -> dict[str, float]:
    """Choose from an endpoint's terms the parts of its cost."""
    return {name: round(value, 3) for name, value in terms.items() if name not in NO_COSTS}


def judge(code: float) -> str:
    """Name who predicted for an endpoint, by a learned policy's term; records may be of a later version."""
    return FALLBACKS[int(code)] or "model" if code < len(FALLBACKS) else f"reason {code:g}"


def why(record: Mapping[str, Any]) -> str:
    """Say why an endpoint was chosen, against the runner-up."""
    names, costs, chosen, held = (record[name] for name in ("endpoints", "costs", "chosen", "held_back"))
    others = [row for row in range(len(costs)) if row not in (chosen, *held) and costs[row] < NO_CHANCE]
    if not others:
        reason = f"because {_alone(record)}"
    elif not (reason := _without_costs(record)):
        other = min(others, key=costs.__getitem__)
        reason = f"over {names[other]} because {_compared(record, other)}"
    return (
        f"{_waited(record)}{names[chosen]} {'would be' if record['id'] == PREVIEW else 'was'} chosen {reason}"
    )


def _waited(record: Mapping[str, Any]) -> str:
    """Say how the request waited; empty where it did not."""
    if (wait := record.get("wait")) is None:
        return ""
    engine = PLACE if wait.get("held") else wait["engine"] or ANY_ENGINE
    return f"waited {wait['waited_s']:.1f} s for {engine}, let go because {wait['reason']}; then "


def _alone(record: Mapping[str, Any]) -> str:
    """Say why no other endpoint was asked."""
    excluded = record["excluded"]
    if "stored-response" in excluded:
        return "it stores the response that the request goes on from"
    if not excluded and len(record["costs"]) == 1:
        return "the pool has no other endpoint"
    return f"it alone was left by {', '.join(excluded) or 'slow start or the policy'}"


def _without_costs(record: Mapping[str, Any]) -> str:
    """Say what decided where it was not the difference of two costs; empty where it was."""
    chosen, tied, chance = record["chosen"], record["tied"], record["probabilities"][record["chosen"]]
    terms = {name: column[chosen] for name, column in record["terms"].items()}
    if terms.get("explored"):
        return "by exploring: a draw among all"
    if "place" in terms:
        place = "the endpoint of its session or prefix has no room"
        return f"because {place if terms['place'] else 'its session or prefix belongs there'}"
    if terms.get("fallback"):
        return f"because there is no prediction and the heuristic decided: {judge(terms['fallback'])}"
    if tied > 1:
        band = record["tie_band"]
        return f"by a draw among {tied} {f'within {band:.1%} of' if band else 'at'} the lowest cost"
    if chance < 1.0 and "explored" not in terms:
        return f"by a draw, with a chance of {chance:.0%}"
    return "because it was its turn" if "turns" in terms else ""


def _compared(record: Mapping[str, Any], other: int) -> str:
    """Say which terms are better than another endpoint's and which are worse, by what they cost."""
    chosen, costs = record["chosen"], record["costs"]
    mine, theirs = _parts(record, chosen), _parts(record, other)
    deltas = {name: value - theirs[name] for name, value in mine.items() if value != theirs[name]}
    if deltas.get("elsewhere"):
        return "its region goes first while it has room or no other is much cheaper"
    ordered = sorted(deltas, key=lambda name: -abs(deltas[name]))
    if abs(sum(deltas.values()) - costs[chosen] + costs[other]) > 0.01 + 1e-6 * abs(costs[other]):
        by = (f"{name.replace('_', ' ')} ({mine[name]:,.4g} against {theirs[name]:,.4g})" for name in ordered)
        return f"{record['policy']} ranks it first by {' and '.join(by)}"
    told = [name for name in ordered if abs(deltas[name]) > _LEAST_SHARE * abs(deltas[ordered[0]])]
    better, worse = (
        " and ".join(_said(record, other, name, deltas[name]) for name in told if deltas[name] * sign > 0.0)
        for sign in (-1.0, 1.0)
    )
    return f"{better} {'outweigh' if ' and ' in better else 'outweighs'} {worse}" if worse else f"of {better}"


def _parts(record: Mapping[str, Any], row: int) -> dict[str, float]:
    """Return the parts of an endpoint's cost; of scores by their weights, the higher the cheaper."""
    terms = {name: column[row] for name, column in record["terms"].items()}
    if record["policy"] not in SCORES:
        return costs_of(terms)
    params = record["params"]
    profile = params["stages"]["decode"]["profile"] if "stages" in params else params
    weights = profile.get("scorer_weights") or LlmDProfile().scorer_weights
    return {name: -weight * terms[name] for name, weight in weights.items()}


def _said(record: Mapping[str, Any], other: int, name: str, delta: float) -> str:
    """Put a term's difference into words."""
    size, unit = abs(delta), unit_of(record["policy"]).partition(",")[0]
    unit = unit if unit in _AMOUNTS else ""
    amount = f"{round(size, 2 * (size < 10.0)):,g} {unit}".strip()
    if record["policy"] in SCORES:
        return f"{amount} {'more' if delta < 0.0 else 'less'} by {name}"
    cached = record["signals"]["cached_tokens"]
    tokens = cached[record["chosen"]] - cached[other]
    if name == "prefill" and tokens * delta < 0.0:
        return f"{abs(tokens):,.0f} {'more' if tokens > 0.0 else 'fewer'} cached tokens ({amount})"
    less = "less" if unit else "fewer"
    return f"{amount} {less if delta < 0.0 else 'more'} {name.removesuffix('_ms').replace('_', ' ')}"
