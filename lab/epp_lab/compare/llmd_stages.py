"""llm-d's guide for prefill and decode, as parameters of its policy `llm-d-stages`."""

from __future__ import annotations


def prefix_decided(threshold: float) -> dict[str, object]:
    """Return the guide's profiles, with a prefill for prompts of which who decodes lacks so many tokens.

    Both find workers by ``prefix-cache-scorer``, which weighs 2, and ``active-request-scorer``.
    """

    def profile(role: str) -> dict[str, object]:
        return {
            "filters": {"role": {"type": f"{role}-filter"}},
            "scorers": {"prefix": {"type": "prefix-cache-scorer"}, "load": {"type": "active-request-scorer"}},
            "scorer_weights": {"prefix": 2.0, "load": 1.0},
        }

    decider = {"type": "prefix-based-pd-decider", "nonCachedTokens": round(threshold)}
    return {
        "stages": {
            "decode": {"profile": profile("decode")},
            "prefill": {"profile": profile("prefill"), "decider": decider},
        }
    }
