"""Refusals in llm-d's words (endpoint picker protocol 004, errors), and its scores."""

from __future__ import annotations

import numpy as np
import pytest

from epp.llmd import words
from epp.types import Ranking


@pytest.mark.parametrize(
    ("status", "rule", "body", "reason"),
    [
        (400, "client", b"inference error: BadRequest - no model", ""),
        (413, "client", b"inference error: BadRequest - no model", ""),
        (
            429,
            "saturated",
            b"inference error: ResourceExhausted - system saturated, sheddable request dropped: no model",
            "rejected-saturated",
        ),
        (
            503,
            "pool-empty",
            b"inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request: no model",
            "rejected-no-endpoints",
        ),
        (503, "health", b"inference error: ServiceUnavailable - no model", "rejected-no-endpoints"),
        (503, "shutting-down", b"inference error: ServiceUnavailable - no model", "rejected-shutting-down"),
    ],
)
def test_the_error_table(status: int, rule: str, body: bytes, reason: str) -> None:
    assert words.error_text(status, "no model", rule) == body
    assert words.dropped_reason(status, rule) == reason


@pytest.mark.parametrize(
    ("policy", "term", "scores"),
    [("llm-d-stages", "score", [0.25, 0.5]), ("llm-d", "queue", [4.0, 1.5]), ("gorgo", "rtt", [-3.0, -5.5])],
)
def test_scores_of_the_same_formulas_are_llm_ds_own_and_others_higher_for_the_cheaper(
    policy: str, term: str, scores: list[float]
) -> None:
    weights = {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
    ranking = Ranking(np.array([3.0, 5.5]), {term: np.array([0.25, 0.5])})
    found = words.endpoint_scores(("a:1", "b:1"), ranking, policy, weights)
    assert found == {"a:1": scores[0], "b:1": scores[1]}


def test_of_ranks_that_share_an_address_the_best_score_counts() -> None:
    ranking = Ranking(np.array([3.0, 5.5, 1.0]), {})
    assert words.endpoint_scores(("a:1", "a:1", "b:1"), ranking, "gorgo", {}) == {"a:1": -3.0, "b:1": -1.0}
