"""llm-d's words for refusals, and its scores.

Pure. Sources: endpoint picker protocol (proposal 004), errors; llm-d's error texts [E].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.types import Ranking

#: Header that says to a client, or a gateway's retry rule, why a request was dropped.
DROPPED_REASON = "x-llm-d-request-dropped-reason"

#: llm-d's names of statuses, in its answers and as labels of its metrics.
CODE_NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    412: "PreconditionFailed",
    429: "ResourceExhausted",
    500: "Internal",
    503: "ServiceUnavailable",
}
#: Ways of ending that are errors though the status, if any, was good.
BROKEN = {
    "upstream-reset": "UpstreamReset",
    "unreachable": "Unreachable",
    "timed-out": "TimedOut",
    "protocol-error": "ProtocolError",
}
_NO_CANDIDATES = "failed to find endpoint candidates for serving the request"
#: Rule that left nobody -> llm-d's sentence, where it has one for the case.
_SENTENCES = {
    "pool-empty": _NO_CANDIDATES,
    "subset": _NO_CANDIDATES,
    "saturated": "system saturated, sheddable request dropped",
}
PLAIN_TEXT = "text/plain"


def error_text(status: int, message: str, rule: str = "") -> bytes:
    """The body of a refusal: ``inference error: <code name> - <message>``.

    llm-d's own sentence stands where it has one for the rule, with ours behind it, which says more.
    """
    sentence = _SENTENCES.get(rule, "")
    words = f"{sentence}: {message}" if sentence and message else sentence or message
    # Statuses that llm-d never sends take the name of their class.
    name = CODE_NAMES.get(status) or ("BadRequest" if status < 500 else "Internal")
    return f"inference error: {name} - {words}".encode()


#: llm-d's outcomes of requests that its flow control drops, by rule; of any other rule it is the last one.
DROPPED = {
    "queue-full": "RejectedCapacity",
    "queue-ttl": "EvictedTTL",
    "queue-deadline": "EvictedTTL",
    "pool-empty": "EvictedNoEndpoints",
    "client": "EvictedContextCancelled",
    "other": "EvictedOther",
}


def dropped_reason(status: int, rule: str = "") -> str:
    """Value of `DROPPED_REASON`; empty for refusals that are the client's own fault.

    Args:
        status: HTTP status of the refusal.
        rule: what left nobody; the draining picker is ``shutting-down``, one whose memory has no room for
            the body ``held-bodies``, the queue's time to live ``queue-ttl``, a deadline ``queue-deadline``.
    """
    if rule == "shutting-down":
        return "rejected-shutting-down"
    if rule in ("queue-ttl", "queue-deadline"):
        return "rejected-ttl-expired"
    if status == 429 or rule == "held-bodies":
        return "rejected-saturated"
    return "rejected-no-endpoints" if status == 503 else ""


def endpoint_scores(
    endpoints: Sequence[str], ranking: Ranking, policy: str, weights: Mapping[str, float]
) -> dict[str, float]:
    """A score for each priced endpoint, higher is better, for readers who know llm-d's.

    Of `llm-d` and of policies with a term ``score`` it is llm-d's own weighted sum of scores, of any other
    policy the negated cost. Of ranks that share an address the best one's counts.
    """
    whole = sum(weights.values()) if policy == "llm-d" else 0.0
    scores = ranking.terms.get("score", whole - ranking.costs)
    found: dict[str, float] = {}
    for endpoint, score in zip(endpoints, scores.tolist(), strict=True):
        found[endpoint] = max(score, found.get(endpoint, score))
    return found
