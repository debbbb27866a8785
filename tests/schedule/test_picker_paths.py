"""A picker that is told of connections: what it expects, what it learns, and where the next request goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from epp.schedule.scheduler import Scheduler
from epp.signals.paths import NONE_IDLE, ConnectionTiming
from epp.types import Endpoint
from tests.kit.requests import asked, measured
from tests.schedule.test_picker import build

if TYPE_CHECKING:
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.scheduler import Scheduler

TWINS = [Endpoint("a:1", region="west"), Endpoint("b:1", region="west")]
FAR_MS = 200.0
BODY_BYTES = 72_000
COLD = ConnectionTiming(is_new=True, connect_ms=FAR_MS)
WARM = ConnectionTiming(is_new=False, first_byte_ms=FAR_MS)


def far_twins() -> Scheduler:
    scheduler = build("gorgo-ms", TWINS)
    for endpoint in TWINS:
        scheduler.datastore.assume_rtt(endpoint.address, FAR_MS)
    return scheduler


def pick(scheduler: Scheduler, now_s: float) -> Decision:
    """A prompt of its own, so that no cache attracts it."""
    blocks = [int(now_s * 1e6) * 1_000 + number for number in range(1, 31)]
    return scheduler.decide(asked(prompt=measured(0, 1920, blocks, 64.0), body_bytes=BODY_BYTES), now_s, 0.0)


def over(scheduler: Scheduler, decision: Decision, told: ConnectionTiming | None, now_s: float) -> Outcome:
    outcome = scheduler.end(decision.id, "stream-end", now_s, report_follows=True)
    assert outcome is not None
    if told is not None:
        scheduler.connection(decision.id, told)
    scheduler.settle(replace(outcome, attempts=1, status=200))
    return outcome


def test_the_endpoint_with_an_idle_connection_gets_the_next_request() -> None:
    scheduler = far_twins()
    for number in range(20):  # what is told makes connections count at all
        over(scheduler, pick(scheduler, number), COLD if number < 2 else WARM, number + 0.5)
    for slot in (0, 1):
        scheduler.datastore.paths.close(slot)
    last = pick(scheduler, 100.0)
    over(scheduler, last, COLD, 100.5)
    assert pick(scheduler, 101.0).endpoint == last.endpoint
    other = pick(scheduler, 101.1)
    assert other.endpoint != last.endpoint, "that connection is taken now, and so is a place in the batch"


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_a_retry_takes_the_fallbacks_idle_connection_and_leaves_no_more_than_were_opened(idle: int) -> None:
    scheduler = far_twins()
    paths, slots = (
        scheduler.datastore.paths,
        {endpoint.address: slot for slot, endpoint in scheduler.datastore.members},
    )
    decision = pick(scheduler, 0.0)
    elsewhere = next(address for address in slots if address != decision.endpoint)
    for _ in range(idle):
        paths.ended(slots[elsewhere], 0.0)
    scheduler.served(decision.id, elsewhere)
    over(scheduler, decision, None, 100.0)
    found = [paths.started(slots[elsewhere], 100.5) for _ in range(3)]
    assert found == ([0, 4, NONE_IDLE] if idle == 2 else [0, NONE_IDLE, NONE_IDLE])
