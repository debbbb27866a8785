"""Several pickers whose requests wait: each counts the others' queues, and a tenant's share is one, wherever it asks."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from epp.cluster.index_sync import ALONE_S, SILENT_S, WHOLE_S
from epp.config.schema import QueueSection
from epp.schedule.decision import Decision
from epp.schedule.late_binding import YIELD_S, LateBinding
from epp.schedule.queue import ANY, MAX_FLOWS, RequestQueue, Waiter
from epp.types import Endpoint, RequestInfo
from tests.cluster.test_sharing import Bus

if TYPE_CHECKING:
    from collections.abc import Sequence

ENGINES = ("10.0.0.1:80", "10.0.0.2:80")
STEP_S = 0.02
TOKENS = 10_000
#: Prefill for more seconds than a look at the queue takes.
LONG = 100_000
#: Requests of a flow that always wait.
BACKLOG = 8
#: What an engine of these tests takes for a request.
SERVICE_S = 0.4


@dataclass
class Pool:
    """Pickers with queues before engines that serve one request after another."""

    names: Sequence[str]
    bus: Bus = field(default_factory=Bus)
    bindings: dict[str, LateBinding] = field(default_factory=dict)
    went: list[str] = field(default_factory=list)
    served: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    at: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {one: [] for one in ENGINES})
    _ends_s: dict[str, float] = field(default_factory=dict)
    _numbers: int = 0

    def __post_init__(self) -> None:
        for name in self.names:
            self.join(name)
        self.bus.run(ALONE_S + WHOLE_S)

    def join(self, name: str) -> None:
        link = self.bus.join(name)
        scheduler = self.bus.pickers[name]
        scheduler.set_pool([Endpoint(one, engine_class="h100") for one in ENGINES], self.now_s)
        binding = self.bindings[name] = LateBinding(scheduler, QueueSection(), lambda _: 0.0)
        link.share_queue(binding)

    @property
    def now_s(self) -> float:
        return self.bus.clock.mono_s()

    def waiting(self, name: str) -> int:
        return len(self.bindings[name].queue)

    def ask(self, name: str, flow: str, priority: int = 0, tokens: int = TOKENS) -> Decision | Waiter:
        self._numbers += 1
        request = RequestInfo(
            prompt_tokens=tokens, priority=priority, api="chat", decision_id=f"{flow}/{self._numbers}"
        )
        found = self.bindings[name].decide(request, self.now_s, 0.0, flow=flow, ttft_slo_s=0.0, held_bytes=10)
        if isinstance(found, Decision):
            self._send(name, found, flow)
        return found

    def _send(self, name: str, decision: Decision, flow: str) -> None:
        self.went.append(flow)
        at = self.at[decision.endpoint]
        at.append((name, decision.id))
        if len(at) == 1:
            self._ends_s[decision.endpoint] = self.now_s + SERVICE_S

    def fill(self, name: str, each: int = 4) -> None:
        """Give each engine so much that it has no room."""
        for _ in range(each * len(ENGINES)):
            decision = self.bindings[name].decide_now(
                RequestInfo(prompt_tokens=50_000, api="chat"), self.now_s, 0.0
            )
            self._send(name, decision, "")
        self.bus.run(0.1)

    def run(self, seconds: float, backlog: Sequence[tuple[str, str]] = ()) -> None:
        """Let time pass; of each flow of the backlog so many requests wait at its picker at any time."""
        for step in range(round(seconds / STEP_S)):
            for link in () if step % round(WHOLE_S / STEP_S) else self.bus.links.values():
                link.flush()
            for name, flow in backlog:
                while sum(one.flow == flow for one in self.bindings[name].queue.waiting()) < BACKLOG:
                    if isinstance(self.ask(name, flow), Decision):
                        self.served[flow] += TOKENS
            self._step()

    def _step(self) -> None:
        self.bus.run(STEP_S)
        for engine, at in self.at.items():
            if at and self._ends_s[engine] <= self.now_s:
                name, decision = at.pop(0)
                self._ends_s[engine] += SERVICE_S
                self.bus.pickers[name].end(decision, "completed", self.now_s)
        for name, binding in self.bindings.items():
            if name not in self.bus.links or not len(binding.queue):
                continue
            for waiter in binding.poll(self.now_s, 0.0):
                if waiter.decision is not None:
                    self._send(name, waiter.decision, waiter.flow)
                    self.served[waiter.flow] += TOKENS


def waiter_of(flow: str) -> Waiter:
    return Waiter(RequestInfo(), flow, 10, 0.0, ANY, ANY, 0.0, math.inf, 30.0)


def jain(served: Sequence[float]) -> float:
    return sum(served) ** 2 / len(served) / sum(one * one for one in served)


@pytest.mark.parametrize(
    "elsewhere",
    [
        [("a", "at a"), ("a", "at a, too"), ("b", "at b"), ("c", "at c")],
        [("a", "first"), ("a", "second"), ("a", "third"), ("a", "fourth")],
    ],
    ids=["beside others at each", "alone at two of three"],
)
def test_a_tenant_that_asks_at_every_picker_is_served_as_much_as_one_that_asks_at_one(
    elsewhere: list[tuple[str, str]],
) -> None:
    pool = Pool("abc")
    pool.fill("a")
    backlog = [*((name, "spread") for name in "abc"), *elsewhere]
    pool.run(4.0, backlog)
    pool.served.clear()
    pool.run(20.0, backlog)
    assert jain(list(pool.served.values())) > 0.995
    assert sum(pool.served.values()) > 0.9 * 20.0 * len(ENGINES) / SERVICE_S * TOKENS, (
        "and no engine idles for it"
    )


def test_room_goes_to_the_high_priority_that_waits_at_another_picker() -> None:
    pool = Pool("ab")
    pool.fill("b")
    for _ in range(20):
        assert isinstance(pool.ask("a", "high", priority=1), Waiter)
        assert isinstance(pool.ask("b", "low"), Waiter)
    pool.went.clear()
    pool.run(12.0)
    assert pool.went == ["high"] * 20 + ["low"] * 20


def make_room(pool: Pool) -> None:
    """Empty the engines, which the first picker filled, before it looks for those who wait there."""
    for engine, at in pool.at.items():
        for name, decision in at:
            pool.bus.pickers[name].end(decision, "completed", pool.now_s)
        pool.at[engine] = []
    pool.bus.run(0.1)


def test_a_newcomer_does_not_pass_those_who_wait_at_another_picker_but_a_higher_priority_does() -> None:
    pool = Pool("ab")
    pool.fill("a")
    for _ in range(4):
        assert isinstance(pool.ask("a", "first", tokens=LONG), Waiter)
    pool.bus.run(0.1)
    make_room(pool)
    pool.went.clear()
    assert isinstance(pool.ask("b", "later", tokens=LONG), Waiter)
    assert isinstance(pool.ask("b", "low", -1, tokens=LONG), Waiter)
    assert isinstance(pool.ask("b", "high", 1), Decision)
    pool.run(8.0)
    assert pool.went == ["high", *["first"] * 4, "later", "low"]


def test_nobody_waits_for_those_at_a_picker_that_is_dead_or_takes_no_room() -> None:
    pool = Pool("ab")
    pool.fill("a")
    assert isinstance(pool.ask("a", "first"), Waiter)
    assert isinstance(pool.ask("a", "first"), Waiter)
    pool.bus.run(0.1)
    make_room(pool)
    pool.bus.run(0.1)
    waits = pool.ask("b", "later")
    assert isinstance(waits, Waiter)
    pool.bus.clock.advance(YIELD_S)
    assert pool.bindings["b"].poll(pool.now_s, 0.0) == [waits], "the other does not look"
    pool.bus.kill("a")
    pool.bus.run(SILENT_S + 2.0 * WHOLE_S)
    assert isinstance(pool.ask("b", "later"), Decision)


def test_who_begins_to_ask_at_an_idle_picker_is_no_further_behind_than_the_others() -> None:
    pool = Pool("ab")
    pool.fill("a")
    old = [("a", "old"), ("a", "old, too")]
    pool.run(8.0, old)
    pool.served.clear()
    pool.run(8.0, [*old, ("b", "new")])
    assert jain(list(pool.served.values())) > 0.98


def test_so_many_flows_are_told_at_once_those_first_that_were_served_most() -> None:
    queue = RequestQueue(QueueSection())
    for number in range(2 * MAX_FLOWS):
        queue.put(waiter_of(str(number)))
        queue.served(0, str(number), number, 0.0)
    requests, _, flows = queue.state(0.0)[0]
    assert requests == 2 * MAX_FLOWS
    assert flows == {str(number): float(number) for number in range(MAX_FLOWS, 2 * MAX_FLOWS)}
    assert set(queue.state(0.0)[0][2].values()) == {0.0}, "each is told once"
