"""The sentence that says why an endpoint was picked."""

from __future__ import annotations

from typing import Any

import pytest

from epp.console.explain import explained
from epp.console.why import why
from epp.request.recent import PREVIEW
from tests.kit.records import ask_of, picker_of, through_json

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def record(
    policy: str = "gorgo-ms", terms: dict[str, list[float]] | None = None, **told: Any
) -> dict[str, Any]:
    """A record of a decision for A, over B and C; costs are the sums of the terms unless told."""
    terms = terms or {"waiting": [0.0, 1.0, 2.0]}
    costs = [sum(row) for row in zip(*terms.values(), strict=True)]
    return {
        "id": "d-1",
        "policy": policy,
        "basis": "policy",
        "params": {},
        "endpoints": [A, B, C][: len(costs)],
        "terms": terms,
        "costs": costs,
        "chosen": 0,
        "tied": 1,
        "tie_band": 0.0,
        "held_back": [],
        "excluded": {},
        "probabilities": [1.0, 0.0, 0.0],
        "signals": {"cached_tokens": [0.0] * len(costs)},
        **told,
    }


def test_what_is_better_than_at_the_runner_up_outweighs_what_is_worse() -> None:
    terms = {"waiting": [25.0, 100.0, 900.0], "prefill": [90.0, 30.0, 30.0], "network": [5.0, 5.0, 5.0]}
    signals = {"cached_tokens": [0.0, 384.0, 384.0]}
    assert why(record(terms=terms, signals=signals)) == (
        f"{A} was chosen over {B} because 75 ms less waiting outweighs 384 fewer cached tokens (60 ms)"
    )


def test_several_terms_are_told_by_size_and_small_ones_are_left_out() -> None:
    terms = {"waiting": [0.0, 200.0], "stall": [0.0, 300.0], "network": [90.0, 0.0], "decode": [1.0, 0.0]}
    assert why(record(terms=terms)).endswith(
        "because 300 ms less stall and 200 ms less waiting outweigh 90 ms more network"
    )


def test_what_is_better_in_all_that_matters_is_told_alone() -> None:
    terms = {"waiting": [0.0, 50.0], "network": [1.0, 0.0], "stall": [0.0, 40.0]}
    assert why(record(terms=terms)).endswith("because of 50 ms less waiting and 40 ms less stall")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"tied": 3, "tie_band": 0.01}, "by a draw among 3 within 1.0% of the lowest cost"),
        ({"tied": 2}, "by a draw among 2 at the lowest cost"),
        ({"policy": "random", "probabilities": [1 / 3] * 3}, "by a draw, with a chance of 33%"),
        (
            {"policy": "session-affinity", "terms": {"place": [0.0, 1.0]}},
            "because its session or prefix belongs there",
        ),
        (
            {"policy": "prefix-hash", "terms": {"place": [1.0, 0.0]}, "costs": [0.0, 1.0]},
            "because the endpoint of its session or prefix has no room",
        ),
        ({"policy": "round-robin", "terms": {"turns": [0.0, 1.0]}}, "because it was its turn"),
        (
            {"held_back": [1], "costs": [1.0, 0.0, 2.0], "terms": {"waiting": [1.0, 0.0, 2.0]}},
            f"over {C} because of 1 ms less waiting",
        ),
        ({"held_back": [1, 2]}, "because it alone was left by slow start or the policy"),
        (
            {"policy": "gorgo", "terms": {"queue": [0.0, 700.0], "rtt": [9.0, 3.0]}},
            f"over {B} because of 700 tokens less queue",
        ),
        (
            {
                "policy": "lmetric",
                "terms": {"prefill_tokens": [10.0, 30.0], "requests": [2.0, 1.0]},
                "costs": [20, 30],
            },
            f"over {B} because lmetric ranks it first by prefill tokens (10 against 30) and requests (2 against 1)",
        ),
        (
            {"terms": {"waiting": [0.0, 1.0], "elsewhere": [0.0, 500.0]}},
            f"over {B} because its region goes first while it has room or no other is much cheaper",
        ),
        (
            {
                "policy": "llm-d-profile",
                "params": {"scorer_weights": {"queue-scorer": 2.0, "prefix-cache-scorer": 3.0}},
                "terms": {"queue-scorer": [1.0, 0.2], "prefix-cache-scorer": [0.1, 0.5], "score": [2.3, 1.9]},
                "costs": [2.7, 3.1],
            },
            f"over {B} because 1.6 more by queue-scorer outweighs 1.2 less by prefix-cache-scorer",
        ),
        (
            {
                "policy": "llm-d-stages",
                "params": {"stages": {"decode": {"profile": {"scorer_weights": {"queue-scorer": 2.0}}}}},
                "terms": {"queue-scorer": [1.0, 0.2], "score": [2.0, 0.4]},
                "costs": [0.0, 1.6],
            },
            f"over {B} because of 1.6 more by queue-scorer",
        ),
    ],
)
def test_draws_sessions_turns_and_other_policies_are_told_in_their_own_words(
    told: dict[str, Any], words: str
) -> None:
    assert why(record(**told)) == f"{A} was chosen {words}"


@pytest.mark.parametrize(
    ("excluded", "words"),
    [
        ({}, "the pool has no other endpoint"),
        ({"health": [B], "region": [C, "d"]}, "it alone was left by health, region"),
        ({"stored-response": [B]}, "it stores the response that the request goes on from"),
    ],
)
def test_who_alone_was_left_is_told_with_the_filter_that_left_it(
    excluded: dict[str, list[str]], words: str
) -> None:
    found = record(terms={"waiting": [0.0]}, excluded=excluded)
    assert why(found) == f"{A} was chosen because {words}"


def test_what_waited_is_told_first() -> None:
    wait = {"waited_s": 1.83, "engine": C, "reason": "its patience was over"}
    told = why(record(terms={"waiting": [0.0]}, wait=wait))
    assert told.startswith(f"waited 1.8 s for {C}, let go because its patience was over; then {A} was chosen")
    assert why(record(wait=wait | {"engine": ""})).startswith("waited 1.8 s for any engine, let go because")


def test_a_preview_says_what_would_be() -> None:
    assert why(record(id=PREVIEW)).startswith(f"{A} would be chosen over {B} because")


def test_terms_stand_in_rows_and_endpoints_in_columns_the_pick_first() -> None:
    decision = picker_of("gorgo").decide(ask_of(1), 0.0, 0.0)
    found = through_json(decision)
    found["chosen"] = 2
    shown = explained(found, most=2)
    assert shown["columns"] == ["", found["endpoints"][2], found["endpoints"][0]]
    _, cost, *_ = shown["rows"]
    assert cost == ["cost (tokens, weighted)", f"{found['costs'][2]:,.1f}", f"{found['costs'][0]:,.1f}"]
    assert "not shown: 1 of higher cost" in shown["words"]
