"""Engines' counts tell what of a body they put into the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.apis.openai import Chat
from epp.apis.rendering import PAST_REASONING, REASONING, Rendering
from epp.tokens import optional_parts
from epp.tokens.estimate import EstimateCounter
from epp.tokens.optional_parts import OptionalParts
from epp.types import RequestInfo
from tests.kit.records import HASHER

USER = {"role": "user", "content": "a question of some words " * 80}
THOUGHT = {"role": "assistant", "reasoning_content": "hm, let me think " * 500, "content": "an answer " * 60}


class Learning:
    """A picker's estimates, and an engine that drops what was thought before."""

    def __init__(self) -> None:
        self.counter, self.optional = EstimateCounter(), OptionalParts()

    def parsed(self, *messages: dict[str, Any]) -> RequestInfo:
        body = json.dumps({"model": "m", "messages": messages}).encode()
        rendering = Rendering(dropped=self.optional.dropped("m"))
        return HASHER.measure(Chat.parse(body, {}, lambda _: rendering), self.counter)

    def served(self, request: RequestInfo, tokens: int) -> None:
        counted = self.optional.observe(request, tokens, self.counter.bytes_per_token("m"))
        self.counter.observe("m", counted, tokens)


def test_reasoning_that_a_template_drops_is_learned_to_be_dropped_and_teaches_no_ratio() -> None:
    learning = Learning()
    true = learning.parsed(USER, THOUGHT | {"reasoning_content": None}, USER).prompt_tokens
    before = learning.parsed(USER, THOUGHT, USER)
    assert before.prompt_tokens > 2 * true
    for _ in range(3):
        learning.served(learning.parsed(USER, THOUGHT, USER), true)
    assert learning.optional.dropped("m") == {PAST_REASONING}
    after = learning.parsed(USER, THOUGHT, USER)
    assert after.prompt_tokens == pytest.approx(true, rel=0.01)
    assert len(after.blocks) < len(before.blocks)
    assert learning.counter.bytes_per_token("m") == pytest.approx(4.0, rel=0.001)
    assert learning.optional.dropped("other") == frozenset()


def test_reasoning_that_is_kept_stays_so_whatever_the_model_gets_to_see_later() -> None:
    learning = Learning()
    with_all = learning.parsed(USER, THOUGHT)
    for _ in range(5):
        learning.served(with_all, with_all.prompt_tokens)
    assert learning.optional.dropped("m") == frozenset()
    gone = round(with_all.prompt_tokens - with_all.optional[REASONING] / 4.0)
    for _ in range(3):
        learning.served(with_all, gone)
    assert learning.optional.dropped("m") == frozenset(), "three requests are not enough against five"
    for _ in range(3):
        learning.served(with_all, gone)
    assert learning.optional.dropped("m") == {REASONING}


def test_it_is_learned_again_when_another_engine_keeps_it() -> None:
    learning = Learning()
    kept = learning.parsed(USER, THOUGHT, USER).prompt_tokens
    true = learning.parsed(USER, THOUGHT | {"reasoning_content": None}, USER).prompt_tokens
    for tokens, dropped in ((true, {PAST_REASONING}), (kept, set())):
        for _ in range(6):
            learning.served(learning.parsed(USER, THOUGHT, USER), tokens)
        assert learning.optional.dropped("m") == dropped


def test_parts_too_small_to_tell_and_prompts_without_any_say_nothing() -> None:
    learning = Learning()
    small = learning.parsed(USER, THOUGHT | {"reasoning_content": "hm"}, USER)
    for _ in range(9):
        learning.served(small, small.prompt_tokens - 1)
    assert learning.optional.dropped("m") == frozenset()
    plain = learning.parsed(USER)
    assert learning.optional.observe(plain, 9, 4.0) == plain.text_bytes


def test_models_are_forgotten_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_parts, "_MAX_MODELS", 2)
    optional = OptionalParts()
    for name in ("a", "b", "c"):
        request = RequestInfo(model=name, text_bytes=8000, optional={REASONING: 4000})
        for _ in range(3):
            optional.observe(request, 1000, 4.0)
    assert [bool(optional.dropped(name)) for name in ("a", "b", "c")] == [False, True, True]
