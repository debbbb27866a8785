"""A picker that is told of connections: what it expects, what it learns, and where the next request goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from epp.apis.types import MeasuredPrompt
from epp.schedule.picker import Ask, Picker
from epp.signals.endpoint import Endpoint
from epp.signals.paths import NONE_IDLE, Travelled
from tests.schedule.test_picker import build

if TYPE_CHECKING:
    from epp.schedule.decision import Decision, Outcome

TWINS = [Endpoint("a:1", region="west"), Endpoint("b:1", region="west")]
FAR_MS = 200.0
BODY_BYTES = 72_000
COLD = Travelled(anew=True, opened_ms=FAR_MS)
WARM = Travelled(anew=False, first_byte_ms=FAR_MS)


def far_twins() -> Picker:
    picker = build("gorgo-ms", TWINS)
    for endpoint in TWINS:
        picker.fleet.assume_rtt(endpoint.address, FAR_MS)
    return picker


def pick(picker: Picker, now_s: float) -> Decision:
    """A prompt of its own, so that no cache attracts it."""
    blocks = [int(now_s * 1e6) * 1_000 + number for number in range(1, 31)]
    return picker.pick(Ask(prompt=MeasuredPrompt(0, 1920, blocks, 64.0), body_bytes=BODY_BYTES), now_s, 0.0)


def over(picker: Picker, decision: Decision, told: Travelled | None, now_s: float) -> Outcome:
    outcome = picker.end(decision.id, "stream-end", now_s, report_follows=True)
    assert outcome is not None
    if told is not None:
        picker.travelled(decision.id, told)
    picker.settle(replace(outcome, attempts=1, status=200))
    return outcome


def test_the_endpoint_with_an_idle_connection_gets_the_next_request() -> None:
    picker = far_twins()
    for number in range(20):  # what is told makes connections count at all
        over(picker, pick(picker, number), COLD if number < 2 else WARM, number + 0.5)
    for slot in (0, 1):
        picker.fleet.paths.close(slot)
    last = pick(picker, 100.0)
    over(picker, last, COLD, 100.5)
    assert pick(picker, 101.0).endpoint == last.endpoint
    other = pick(picker, 101.1)
    assert other.endpoint != last.endpoint, "that connection is taken now, and so is a place in the batch"


def test_without_reports_on_connections_nothing_is_priced() -> None:
    picker = far_twins()
    for number in range(20):
        decision = pick(picker, number)
        assert decision.fleet.cold_chance.tolist() == [0.0, 0.0]
        assert decision.fleet.connect_ms.tolist() == [0.0, 0.0]
        over(picker, decision, None, number + 0.5)
    assert picker.fleet.paths.describe(picker.fleet.rtt.rtt_ms(20.0)) == {}


@pytest.mark.parametrize("cause", ["client-gone", "upstream-reset", "timed-out"])
def test_a_request_that_broke_off_leaves_no_connection(cause: str) -> None:
    picker = far_twins()
    over(picker, pick(picker, 0.0), COLD, 0.5)
    decision = pick(picker, 1.0)
    picker.end(decision.id, cause, 1.5)
    again = pick(picker, 2.0)
    assert again.fleet.cold_chance[again.fleet.endpoints.index(decision.endpoint)] > 0.5


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_a_retry_takes_the_fallbacks_idle_connection_and_leaves_no_more_than_were_opened(idle: int) -> None:
    picker = far_twins()
    paths, slots = picker.fleet.paths, {endpoint.address: slot for slot, endpoint in picker.fleet.members}
    decision = pick(picker, 0.0)
    elsewhere = next(address for address in slots if address != decision.endpoint)
    for _ in range(idle):
        paths.ended(slots[elsewhere], 0.0)
    picker.served(decision.id, elsewhere)
    over(picker, decision, None, 100.0)
    found = [paths.started(slots[elsewhere], 100.5) for _ in range(3)]
    assert found == ([0, 4, NONE_IDLE] if idle == 2 else [0, NONE_IDLE, NONE_IDLE])


def test_a_retry_teaches_nothing_and_its_connection_is_where_it_was_served() -> None:
    picker = far_twins()
    decision = pick(picker, 0.0)
    elsewhere = next(e.address for e in TWINS if e.address != decision.endpoint)
    picker.served(decision.id, elsewhere)
    over(picker, decision, COLD, 0.5)
    assert not picker.fleet.paths.known
    over(picker, pick(picker, 1.0), WARM, 1.2)  # now connections count
    for slot, _ in picker.fleet.members:
        picker.fleet.paths.close(slot)
    moved = pick(picker, 2.0)
    elsewhere = next(e.address for e in TWINS if e.address != moved.endpoint)
    picker.served(moved.id, elsewhere)
    over(picker, moved, COLD, 2.5)
    fleet = pick(picker, 3.0).fleet
    chances = dict(zip(fleet.endpoints, fleet.cold_chance.tolist(), strict=True))
    assert chances[elsewhere] < chances[moved.endpoint]


def test_rates_do_not_take_a_cold_path_for_a_slow_engine() -> None:
    learned = []
    for told in (COLD, None):
        picker = far_twins()
        for number in range(60):
            decision = pick(picker, number)
            outcome = picker.end(decision.id, "stream-end", number + 0.9, report_follows=True)
            assert outcome is not None
            if told is not None:
                picker.travelled(decision.id, told)
            picker.settle(replace(outcome, attempts=1, status=200, streamed=True, ttft_ms=1_100.0))
        learned.append(picker.fleet.rates.of(0))
    cold, blind = learned
    assert cold.prefill_ms_per_token < blind.prefill_ms_per_token
