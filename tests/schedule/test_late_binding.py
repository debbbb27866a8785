"""What waits in the picker, what for, and what lets it go: conversations with the queue and its scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.config.schema import Limits, QueueBand, QueueSection
from epp.errors import NoEndpointError, NotAdmittedError
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.request.queueing import Queueing
from epp.schedule.decision import Decision, QueueWait
from epp.schedule.late_binding import LateBinding
from epp.schedule.queue import ANY, MOST_TURNS, Waiter
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint, RequestInfo
from tests.kit.clock import ManualClock
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
    saturated: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = picker_of("gorgo-ms", pool=[])
        self.pool(*self.engines)
        self.binding = LateBinding(self.scheduler, self.section, lambda _: self.saturated)
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
        came_s: float = 0.0,
    ) -> Decision | Waiter:
        request = RequestInfo(
            decision_id=name,
            prompt_tokens=tokens,
            blocks=list(blocks),
            block_tokens=1_000.0,
            priority=priority,
            model=model,
            api="chat",
            came_s=came_s,
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


def test_who_waits_keeps_eight_bytes_for_each_block_and_they_are_counted() -> None:
    talk = Conversation()
    talk.fill()
    queueing = Queueing(talk.binding, 60.0, ManualClock(), Metrics(TABLE), "pool")

    def held(request: RequestInfo) -> Waiter:
        wait = queueing.decide(request, {}, 0)
        assert not isinstance(wait, Decision)
        wait.close()
        return next(
            one for one in talk.binding.queue.waiting() if one.request.decision_id == request.decision_id
        )

    plain = RequestInfo(decision_id="a", prompt_tokens=1_000, block_tokens=64.0, api="chat")
    told = replace(plain, decision_id="b", blocks=[1, 2], engine_blocks={"of 16": [3, 4, 5], "of 32": [6]})
    before, waits = held(plain), held(told)
    assert waits.held_bytes - before.held_bytes == 8 * 6
    assert waits.request.engine_blocks == {"of 16": array("Q", [3, 4, 5]), "of 32": array("Q", [6])}


def test_who_waits_takes_an_engine_that_joins() -> None:
    talk = Conversation(engines=(FIRST,))
    talk.fill(FIRST)
    waits = talk.ask("c")
    assert isinstance(waits, Waiter)
    talk.pool(FIRST, "10.0.0.3:80")
    assert talk.poll() == [waits]
    assert where(waits) == "10.0.0.3:80"


def test_what_an_engine_refused_is_the_first_of_its_flow_and_has_the_rest_of_its_time() -> None:
    talk = Conversation(engines=(FIRST,), now_s=1.0)
    talk.fill(FIRST)
    talk.ask("early", 50_000)
    talk.ask("dated", 50_000, slo_s=20.0)
    talk.ask("refused", 50_000, came_s=0.5)
    talk.scheduler.datastore.ledger.end(FIRST)
    first = talk.poll()[0]
    assert (first.request.decision_id, first.expires_s) == ("refused", 0.5 + QueueSection().ttl_s)


def test_an_engine_that_is_left_alone_has_no_room_until_its_pause_is_over() -> None:
    talk = Conversation()
    talk.fill(FIRST)
    talk.scheduler.datastore.retry_after.pause_for(1, 5.0, 0.0)
    waits = talk.ask("c")
    assert isinstance(waits, Waiter)
    assert talk.poll() == []
    talk.now_s = 5.0
    assert talk.poll() == [waits]
    assert where(waits) == SECOND


def test_where_all_engines_are_left_alone_requests_wait_for_the_first_to_return() -> None:
    talk = Conversation()
    for slot, length_s in (0, 9.0), (1, 5.0):
        talk.scheduler.datastore.retry_after.pause_for(slot, length_s, 0.0)
    waits = [talk.ask(name) for name in "cd"]
    talk.now_s = 5.0
    assert talk.poll() == waits[:1], "it tries the engine, and the others wait for what comes of it"


def test_who_waits_while_the_pool_scales_waits_on_where_engines_of_another_model_come_first() -> None:
    talk = Conversation(engines=())
    waits, expires = talk.ask("c", model="a"), talk.ask("d", model="never")
    talk.pool(SECOND, models={SECOND: "b"})
    assert talk.poll() == talk.poll() == []
    talk.pool(FIRST, SECOND, models={FIRST: "a", SECOND: "b"})
    assert talk.poll() == [waits]
    assert where(waits) == FIRST
    talk.now_s = talk.binding.due_s
    assert talk.poll() == [expires]
    assert isinstance(expires, Waiter)
    assert isinstance(expires.refusal, NoEndpointError)


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


@pytest.mark.parametrize(
    ("tokens", "room", "engine", "reason"),
    [
        (50_500, "home", "home", "its engine had room"),
        (50_500, "other", "home", "its patience was over"),
        (50_500, "new", "home", "an engine joined or had room"),
        (900, "home", "", "an engine had room"),
    ],
)
def test_a_decision_says_how_long_it_waited_for_which_engine_and_why_it_was_let_go(
    tokens: int, room: str, engine: str, reason: str
) -> None:
    talk = Conversation()
    warm = talk.ask("warm", 50_000, blocks=range(50))
    assert isinstance(warm, Decision)
    assert warm.wait is None
    engines = {"home": warm.endpoint, "other": SECOND if warm.endpoint == FIRST else FIRST}
    talk.scheduler.end("warm", "completed", 0.0)
    talk.fill()
    waits = talk.ask("again", tokens, blocks=range(tokens // 1_000))
    assert isinstance(waits, Waiter)
    if room == "new":
        talk.pool(FIRST, SECOND, "10.0.0.3:80")
    else:
        talk.scheduler.datastore.ledger.end(engines[room])
    talk.now_s = talk.binding.due_s if room == "other" else 0.5
    assert talk.poll() == [waits]
    assert waits.decision is not None
    assert waits.decision.wait == QueueWait(talk.now_s, engines.get(engine, ""), reason)


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
    assert late.refusal.rule == "queue-deadline"


def test_an_empty_pool_holds_requests_until_an_engine_comes() -> None:
    talk = Conversation(engines=())
    waits = talk.ask("first")
    assert isinstance(waits, Waiter)
    assert talk.poll() == []
    assert talk.binding.without_endpoint(0.0) == 1
    talk.now_s = 5.0
    talk.pool(FIRST)
    assert talk.binding.without_endpoint(5.0) == 0
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


#: As llm-d's flow control is translated.
LIMITED = QueueSection(limits=Limits(), patience=0.0, fairness="global-strict", empty_ttl_s=300.0)


def names(settled: list[Waiter]) -> list[str]:
    return [one.request.decision_id for one in settled]


def test_below_the_pool_s_limit_requests_go_as_the_policy_says_and_at_it_they_wait() -> None:
    talk = Conversation(LIMITED)
    talk.fill()
    assert where(talk.ask("full engines are no matter")) in {FIRST, SECOND}
    talk.saturated = 1.0
    waits = [talk.ask("low", priority=-1), talk.ask("a"), talk.ask("b"), talk.ask("high", priority=9)]
    assert talk.poll() == []
    talk.saturated = 0.5
    behind = talk.ask("behind those who wait")
    assert isinstance(behind, Waiter)
    assert names(talk.poll()) == ["high", "a", "b", behind.request.decision_id, "low"]
    assert all(where(one) in {FIRST, SECOND} for one in waits)


def test_a_lower_limit_holds_back_a_lower_priority_alone() -> None:
    limits = Limits(policy="priority-holdback", min_ceiling=0.4)
    talk = Conversation(QueueSection(limits=limits, patience=0.0, bands=[QueueBand(priority=9)]))
    talk.saturated = 0.5
    assert isinstance(talk.ask("low"), Waiter)
    assert isinstance(talk.ask("high", priority=9), Decision)
    assert talk.poll() == []
    talk.saturated = 0.3
    assert names(talk.poll()) == ["low"]


@pytest.mark.parametrize(
    ("ordering", "order"), [("slo-deadline", ["soon", "first"]), ("fcfs", ["first", "soon"])]
)
def test_beside_limits_a_deadline_orders_at_most_and_drops_nobody(ordering: Any, order: list[str]) -> None:
    talk = Conversation(replace(LIMITED, ordering=ordering), saturated=1.0)
    talk.ask("first")
    talk.ask("soon", slo_s=2.0)
    talk.now_s = 5.0
    assert talk.poll() == []
    talk.saturated = 0.0
    assert names(talk.poll()) == order


def test_what_comes_to_an_empty_pool_waits_by_a_time_of_its_own_and_a_full_queue_says_so() -> None:
    talk = Conversation(replace(LIMITED, total_requests=1), engines=())
    waits = talk.ask("first")
    assert isinstance(waits, Waiter)
    assert talk.binding.due_s == 300.0
    with pytest.raises(NoEndpointError):
        talk.ask("second")
    talk.pool(FIRST)
    talk.saturated = 0.0
    assert talk.poll() == [waits]


def test_a_look_moves_and_drops_no_more_than_its_share_of_a_long_queue() -> None:
    talk = Conversation()
    talk.fill()
    waits = [talk.ask(f"r{number}") for number in range(2 * MOST_TURNS)]
    last = waits[-1]
    assert isinstance(last, Waiter)
    assert all(each.others is last.others for each in waits if isinstance(each, Waiter)), "it takes kilobytes"
    talk.pool(FIRST, SECOND, "10.0.0.3:80")
    talk.scheduler.datastore.ledger.reserve("third", 2, LONG, LONG, 0.0, sequences=4)
    woken = talk.woken
    assert talk.poll() == []
    assert (last.others, talk.woken) == (frozenset({0, 1}), woken + 1)
    assert talk.poll() == []
    assert last.others == ANY
    talk.now_s = QueueSection().ttl_s
    assert [len(talk.poll()) for _ in range(2)] == [MOST_TURNS, MOST_TURNS]


def test_who_is_bound_and_leaves_before_the_queue_has_moved_is_not_moved() -> None:
    talk = Conversation()
    talk.fill()
    for number in range(MOST_TURNS):
        talk.ask(f"r{number}")
    high = talk.ask("high", priority=1)
    assert isinstance(high, Waiter)
    talk.pool(FIRST, SECOND, "10.0.0.3:80")
    talk.scheduler.datastore.ledger.end(FIRST)
    assert high in talk.poll()
    talk.binding.leave(high, 0.0)
    high.decision = None  # as whoever waited for it forgets it
    talk.poll()
    assert talk.scheduler.datastore.ledger.live("high") is False
