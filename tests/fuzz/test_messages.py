"""The fuzzer of message sequences: every kind of end, and it notices what it is there to notice."""

from __future__ import annotations

import pytest

from epp.extproc import request_side
from epp.extproc.messages import EMPTY_REQUEST_BODY
from tests.fuzz import messages


def test_a_short_run_meets_every_end_and_breaks_nothing() -> None:
    became = messages.run(seed=1, count=3000)
    assert became.total() == 3000
    assert {"played", "left", "refused", "observed", "protocol-error", "completed"} <= set(became)


def test_a_reply_that_is_missing_is_a_peer_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_side.StreamedAhead, "forward", lambda *_: [])
    with pytest.raises(RuntimeError, match=r"seed 1 case \d+: STREAMED/.* ahead=True"):
        messages.run(seed=1, count=3000)


def test_a_reply_that_envoy_would_not_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_side.FullDuplex, "forward", lambda *_: [EMPTY_REQUEST_BODY])
    with pytest.raises(RuntimeError, match="streamed_response"):
        messages.run(seed=1, count=3000)
