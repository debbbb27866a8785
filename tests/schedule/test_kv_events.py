"""Decisions by what engines say that they hold."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from epp.apis.usage import Usage
from epp.console.explain import explained
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.kv_messages import Removed, Stored
from epp.schedule.decision import to_record
from epp.signals.engine_caches import LAG_S, EngineCaches
from epp.types import Endpoint
from tests.kit.records import picker_of, prompt_of
from tests.kit.requests import asked

if TYPE_CHECKING:
    from epp.prefix_cache.kv_messages import Event
    from epp.schedule.scheduler import Scheduler
    from epp.types import RequestInfo

IDS = array("I", range(40 * 64)).tobytes()
NAMES = list(range(1, 41))


@pytest.fixture
def scheduler() -> Scheduler:
    made = picker_of("gorgo", pool=[Endpoint("a:1"), Endpoint("b:1")])
    datastore = made.datastore
    datastore.engine_caches = EngineCaches(EngineBlocks(7), datastore.adapter_name)
    for slot in range(2):
        datastore.engine_caches.listen(slot)
        tell(made, Stored([99], None, bytes(256), 64), slot)
    return made


def caches(scheduler: Scheduler) -> EngineCaches:
    assert scheduler.datastore.engine_caches is not None
    return scheduler.datastore.engine_caches


def tell(scheduler: Scheduler, event: Event, slot: int, now_s: float = 0.0) -> None:
    caches(scheduler).heard(slot, 0, now_s, whole=True)
    for _ in caches(scheduler).index.apply(slot, 0, event):
        pass


def conversation(scheduler: Scheduler) -> RequestInfo:
    blocks = caches(scheduler).hashed("m", IDS, "")
    return replace(asked(prompt=prompt_of(1)), engine_blocks=blocks)


def test_a_prompt_that_came_past_the_picker_is_found_and_records_and_explain_say_by_what(
    scheduler: Scheduler,
) -> None:
    tell(scheduler, Stored(NAMES, None, IDS, 64), 1)
    decision = scheduler.decide(conversation(scheduler), 1.0, 1.0)
    assert decision.endpoint == "b:1"
    assert decision.snapshot.cached_tokens.tolist() == [0, 40 * 64]
    record = to_record(decision)
    assert record["cached_sources"] == {"events": [0, 1]}
    assert ["cached by", "events", "events"] in explained(record)["rows"]


def test_what_the_engine_evicted_is_not_expected_however_lately_it_was_sent(scheduler: Scheduler) -> None:
    first = scheduler.decide(conversation(scheduler), 1.0, 1.0)
    slot = scheduler.datastore.slot_of(first.endpoint)
    assert slot is not None
    tell(scheduler, Stored(NAMES, None, IDS, 64), slot, 1.5)
    scheduler.end(first.id, "completed", 2.0)
    tell(scheduler, Removed(NAMES[1:]), slot, 3.0)
    again = scheduler.decide(conversation(scheduler), 4.0, 4.0)
    assert again.snapshot.cached_tokens[slot] == 64


def test_a_burst_follows_its_first_request_before_events_tell(scheduler: Scheduler) -> None:
    first = scheduler.decide(conversation(scheduler), 1.0, 1.0)
    slot = scheduler.datastore.slot_of(first.endpoint)
    second = scheduler.decide(conversation(scheduler), 1.0, 1.0)
    assert second.snapshot.cached_tokens[slot] == 40 * 64
    scheduler.first_token(first.id, 2.0)
    scheduler.end(second.id, "client-gone", 2.0)
    later = scheduler.decide(conversation(scheduler), 2.0 + LAG_S, 2.0 + LAG_S)
    assert later.snapshot.cached_tokens[slot] == 0


def test_the_index_learns_from_answers_by_what_it_had_expected_itself(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list[float]()
    monkeypatch.setattr(scheduler.datastore.index, "confirm", lambda *told: expected.append(told[1]))
    tell(scheduler, Stored(NAMES, None, IDS, 64), 1)
    decision = scheduler.decide(conversation(scheduler), 1.0, 1.0)
    scheduler.usage(decision.id, Usage(2560, 1, 2500))
    assert expected == [0.0]
