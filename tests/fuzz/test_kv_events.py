"""The fuzzer of KV events: all kinds of ends, and it notices what it is there to notice."""

from __future__ import annotations

import pytest

from epp.feeds import kv_sequences
from tests.fuzz import kv_events


def test_a_short_run_meets_every_end_and_breaks_nothing() -> None:
    became = kv_events.run(seed=1, count=2000)
    assert became.total() == 2000
    assert {"read", "read in part", "refused", "apply", "replay", "lost"} <= set(became)


def test_a_message_applied_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def anyhow(self: kv_sequences.KvSequence, number: int, data: bytes, _: float) -> list[kv_sequences.Step]:
        self._next = number + 1
        return [kv_sequences.Step("apply", number, data, whole=number == 0)]

    monkeypatch.setattr(kv_sequences.KvSequence, "_follow", anyhow)
    with pytest.raises(RuntimeError, match=r"seed 1 case \d+: .* was due"):
        kv_events.run(seed=1, count=2000)
