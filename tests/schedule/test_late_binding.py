"""What waits in the picker, what for, and what lets it go: conversations with the queue and its scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.config.schema import QueueSection
from epp.errors import NotAdmittedError
from epp.schedule.decision import Decision
from epp.schedule.late_binding import LateBinding
from epp.schedule.queue import Waiter
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint, RequestInfo
from tests.kit.records import picker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_NONE: Mapping[str, str] = {}
FIRST, SECOND = "10.0.0.1:80", "10.0.0.2:80"
#: Takes an H100 four seconds.
LONG = 100_000


@dataclass
class Conversation:
    """A queue before two engines, on a clock that is set by hand."""

    section: QueueSection = field(default_factory=QueueSection)
    engines: tuple[str, ...] = (FIRST, SECOND)
    now_s: float = 0.0
    woken: int = 0

    def __post_init__(self) -> None:
        self.scheduler = picker_of("gorgo-ms", pool=[])
        self.pool(*self.engines)
        self.binding = LateBinding(self.scheduler, self.section)
        self.binding.on_ready = self._woken

    def _woken(self) -> None:
        self.woken += 1

    def pool(self, *engines: str, models: Mapping[str, str] = _NONE) -> None:
        served = {one: frozenset({models[one]}) if one in models else frozenset[str]() for one in engines}
        pool = [Endpoint(one, engine_class="h100", models=served[one]) for one in engines]
        self.scheduler.set_pool(pool, self.now_s)

    def ask(
        self,
        name: str,
        tokens: int = 1_000,
        *,
        blocks: range = range(0),
        priority: int = 0,
        model: str = "",
        slo_s: float = 0.0,
    ) -> Decision | Waiter:
        request = RequestInfo(
            decision_id=name,
            prompt_tokens=tokens,
            blocks=list(blocks),
            block_tokens=1_000.0,
            priority=priority,
            model=model,
            api="chat",
        )
        return self.binding.decide(request, self.now_s, 0.0, flow="", ttft_slo_s=slo_s, held_bytes=10)

    def fill(self, *engines: str) -> None:
        """Give each engine four long prompts, reserved by its name."""
        for slot, engine in enumerate(engines or (FIRST, SECOND)):
            self.scheduler.datastore.ledger.reserve(engine, slot, LONG, LONG, self.now_s, sequences=4)

    def poll(self) -> list[Waiter]:
        return self.binding.poll(self.now_s, 0.0)


def where(found: Decision | Waiter | None) -> str:
    if isinstance(found, Waiter):
        found = found.decision
    assert found is not None
    return found.endpoint


def test_while_there_is_room_nothing_waits_and_the_policy_decides() -> None:
    talk = Conversation()
    found = [talk.ask(f"r{n}") for n in range(10)]
    assert {where(one) for one in found} == {FIRST, SECOND}


def test_who_finds_no_room_waits_and_goes_to_the_engine_that_answers_first() -> None:
    talk = Conversation()
    talk.fill()
    waits = talk.ask("c")
    assert isinstance(waits, Waiter)
    assert talk.poll() == []
    talk.scheduler.datastore.ledger.first_token(SECOND, 1.0)
    assert talk.woken == 1
    assert talk.poll() == [waits]
    assert where(waits) == SECOND


def test_who_waits_takes_an_engine_that_joins() -> None:
    talk = Conversation(engines=(FIRST,))
    talk.fill(FIRST)
    waits = talk.ask("c")
    assert isinstance(waits, Waiter)
    talk.pool(FIRST, "10.0.0.3:80")
    assert talk.poll() == [waits]
    assert where(waits) == "10.0.0.3:80"


def test_without_patience_the_one_engine_is_waited_for_until_the_time_to_live_is_over() -> None:
    talk = Conversation(QueueSection(patience=0.0), engines=(FIRST,))
    talk.fill(FIRST)
    waits = talk.ask("c")
    assert isinstance(waits, Waiter)
    assert talk.binding.due_s == QueueSection().ttl_s
    talk.now_s = talk.binding.due_s
    assert talk.poll() == [waits]
    assert isinstance(waits.refusal, NotAdmittedError)


def test_who_may_go_to_none_of_the_open_engines_waits_on_and_the_look_ends() -> None:
    talk = Conversation(engines=())
    waits = [talk.ask(f"r{number}", 50_000, model="a") for number in range(20)]
    talk.pool(FIRST, SECOND, models={FIRST: "a", SECOND: "b"})
    went = talk.poll()
    assert {where(each) for each in went if each.decision} == {FIRST}
    assert 0 < len(went) < len(waits)
    assert not any(each.refusal for each in waits if isinstance(each, Waiter))


def test_a_request_that_fails_leaves_the_others_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation()
    talk.fill()
    first, second = talk.ask("a"), talk.ask("b")
    assert isinstance(first, Waiter)
    assert isinstance(second, Waiter)
    talk.scheduler.datastore.ledger.end(FIRST)
    talk.scheduler.datastore.ledger.end(SECOND)
    schedule, failures = talk.scheduler.schedule, [RuntimeError("broken")]

    def broken(*given: Any) -> Decision:
        if failures:
            raise failures.pop()
        return schedule(*given)

    monkeypatch.setattr(talk.scheduler, "schedule", broken)
    assert talk.poll() == [first, second]
    assert isinstance(first.refusal, RuntimeError)
    assert where(second)


def test_who_is_warm_at_a_busy_engine_waits_for_it_and_takes_another_when_its_patience_is_over() -> None:
    talk = Conversation()
    home = where(talk.ask("warm", 50_000, blocks=range(50)))
    talk.scheduler.end("warm", "completed", 0.0)
    talk.fill()
    waits = talk.ask("again", 50_500, blocks=range(50))
    assert isinstance(waits, Waiter)
    other = SECOND if home == FIRST else FIRST
    talk.scheduler.datastore.ledger.end(other)
    assert talk.poll() == []
    talk.now_s = talk.binding.due_s
    assert talk.now_s == pytest.approx(4.0 * 50_000 * 0.04e-3)
    assert [where(one) for one in talk.poll()] == [other]


def test_the_more_wait_the_longer_a_request_waits_for_its_engine_but_for_half_of_its_deadline() -> None:
    talk = Conversation()
    talk.ask("warm", 50_000, blocks=range(50))
    talk.scheduler.end("warm", "completed", 0.0)
    talk.fill()
    for n in range(6):
        talk.ask(f"cold{n}")
    waits, soon = (
        talk.ask("again", 50_500, blocks=range(50)),
        talk.ask("soon", 50_500, blocks=range(50), slo_s=10.0),
    )
    assert isinstance(waits, Waiter)
    assert isinstance(soon, Waiter)
    assert waits.patience_s == pytest.approx(4.0 * 50_000 * 0.04e-3 * (1.0 + 6 / 2))
    assert 4.9 < soon.patience_s < 5.0


def test_an_engine_whose_batch_is_full_gets_no_more_while_nothing_waits() -> None:
    talk = Conversation(engines=(FIRST,))
    talk.scheduler.datastore.room.observe(0, EngineSample("vllm", 20.0, 1.0, 0.9, 1000), 0.0)
    talk.scheduler.datastore.ledger.reserve("batch", 0, 1, 1, 0.0, sequences=33)
    talk.scheduler.datastore.ledger.first_token("batch", 0.0)
    assert isinstance(talk.ask("last"), Decision)
    assert isinstance(talk.ask("waits"), Waiter)


def test_a_higher_band_has_room_where_a_lower_one_waits() -> None:
    talk = Conversation()
    talk.fill()
    for n in range(20):
        assert isinstance(talk.ask(f"low{n}"), Waiter)
    for slot, name in enumerate((FIRST, SECOND)):
        talk.scheduler.datastore.ledger.end(name)
        talk.scheduler.datastore.ledger.reserve(name, slot, 14_000, 14_000, 0.0)
    assert talk.poll() == []
    assert isinstance(talk.ask("high", priority=1), Decision)


def test_who_cannot_be_in_time_any_more_is_dropped() -> None:
    talk = Conversation()
    talk.fill()
    late = talk.ask("late", slo_s=2.0)
    assert isinstance(late, Waiter)
    assert 1.0 < talk.binding.due_s < 2.0
    talk.now_s = talk.binding.due_s
    assert talk.poll() == [late]
    assert isinstance(late.refusal, NotAdmittedError)


def test_an_empty_pool_holds_requests_until_an_engine_comes() -> None:
    talk = Conversation(engines=())
    waits = talk.ask("first")
    assert isinstance(waits, Waiter)
    assert talk.poll() == []
    talk.now_s = 5.0
    talk.pool(FIRST)
    assert talk.poll() == [waits]
    assert where(waits) == FIRST


def test_who_leaves_the_queue_takes_nothing_and_who_leaves_after_gives_back() -> None:
    talk = Conversation()
    talk.fill()
    gone, bound = talk.ask("gone"), talk.ask("bound")
    assert isinstance(gone, Waiter)
    assert isinstance(bound, Waiter)
    talk.binding.leave(gone, 0.0)
    talk.scheduler.datastore.ledger.end(FIRST)
    assert talk.poll() == [bound]
    talk.binding.leave(bound, 0.0)
    assert talk.scheduler.in_flight == 0


def test_what_waits_at_an_engine_from_elsewhere_counts_until_its_word_is_old() -> None:
    talk = Conversation()
    for slot in (0, 1):
        talk.scheduler.datastore.engine.update(slot, EngineSample("vllm", 1.0, 100.0, 0.1, 1000), 0.0)
    assert isinstance(talk.ask("early"), Waiter)
    talk.now_s = 3.0
    assert isinstance(talk.ask("later"), Decision)


def test_a_request_that_waits_takes_eight_bytes_a_block() -> None:
    talk = Conversation()
    talk.fill()
    waits = talk.ask("c", blocks=range(1))
    assert isinstance(waits, Waiter)
    assert waits.request.blocks.itemsize == 8  # type: ignore[attr-defined]
    assert replace(waits.request, blocks=[0]).blocks == [0]
