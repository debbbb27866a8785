"""gorgo-ms and contexts that many share, by conversation: siblings stay together, a steady crowd gets copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.policies.gorgo_ms import GorgoMs
from tests.kit.records import POOL, WALL_S, picker_of
from tests.kit.requests import asked, measured

if TYPE_CHECKING:
    from epp.types import RequestInfo

_WEIGHT = GorgoMs.weight_specs["prefill_weight"].default
BLOCK_TOKENS, CONTEXT, TASK, SIBLINGS = 64, 112, 2, 8


def _ask(sibling: int | None) -> RequestInfo:
    """The planner's request, or one of a sibling: the planner's context and a task of its own."""
    blocks = list(range(1, CONTEXT + 1))
    if sibling is not None:
        blocks += [1_000 * (sibling + 1) + number for number in range(TASK)]
    prompt = measured(0, len(blocks) * BLOCK_TOKENS, blocks, float(BLOCK_TOKENS))
    return asked(model="m", prompt=prompt, body_bytes=9000, max_output_tokens=90, api="openai-chat")


def _fan_out(apart_s: float) -> tuple[set[str], list[float]]:
    """A planner and its siblings, so far apart, each answering for ever.

    Returns:
        Who served the siblings, and for each of them the price of a millisecond of copying the context.
    """
    scheduler = picker_of(GorgoMs.name)
    for endpoint in POOL:
        scheduler.datastore.assume_rtt(endpoint.address, 20.0)
    now_s = 1.0
    planner = scheduler.decide(_ask(None), now_s, WALL_S + now_s)
    scheduler.first_token(planner.id, now_s + 0.5)
    scheduler.end(planner.id, "completed", now_s + 1.0)
    now_s += 3.0
    served, prices = set[str](), list[float]()
    for sibling in range(SIBLINGS):
        decision = scheduler.decide(_ask(sibling), now_s, WALL_S + now_s)
        snapshot, prefill = decision.snapshot, decision.ranking.terms["prefill"]
        holds, lacks = snapshot.cached_tokens.argmax(), snapshot.cached_tokens.argmin()
        copied = float(snapshot.cached_tokens[holds] - snapshot.cached_tokens[lacks])
        if copied:
            saved_ms = float(snapshot.prefill_ms_per_token[lacks]) * copied
            prices.append(float(prefill[lacks] - prefill[holds]) / saved_ms)
        scheduler.first_token(decision.id, now_s + 0.05)
        served.add(decision.endpoint)
        now_s += apart_s
    return served, prices


def test_siblings_do_not_make_copies_cheap_for_each_other_and_stay_where_their_context_is() -> None:
    served, prices = _fan_out(apart_s=0.06)
    assert len(served) == 1
    assert min(prices) > 0.75 * _WEIGHT
    assert len(prices) == SIBLINGS


def test_a_crowd_that_keeps_coming_makes_copies_cheap_and_gets_them() -> None:
    served, prices = _fan_out(apart_s=6.0)
    assert len(served) > 1
    assert prices == sorted(prices, reverse=True)
    assert prices[0] == pytest.approx(_WEIGHT, rel=0.02)
    assert prices[-1] < 0.75 * _WEIGHT
