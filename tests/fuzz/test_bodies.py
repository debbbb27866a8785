"""The fuzzer itself: repeatable, broad, and short enough to be run with the tests."""

from __future__ import annotations

import random

import pytest

from epp.apis import registry
from epp.apis.registry import PARSERS
from tests.fuzz import bodies


def test_a_short_run_meets_every_api_and_breaks_nothing() -> None:
    became = bodies.run(seed=1, count=3000)
    assert became.total() == 3000
    assert set(became) == {"4xx", "pass-through", *(parser.name for parser in PARSERS)}


def test_a_seed_is_the_same_cases_every_time() -> None:
    starts = bodies.seeds()
    for number in range(50):
        one, two = (bodies.mutate(starts[number % len(starts)], random.Random(number)) for _ in range(2))
        assert one == two


def test_what_breaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise KeyError("a bug")

    monkeypatch.setattr(registry.ROUTES[0].parser, "parse", broken, raising=True)
    with pytest.raises(RuntimeError, match=r"seed 1 case \d+: POST .*/v1/chat/completions"):
        bodies.run(seed=1, count=500)
