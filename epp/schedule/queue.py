"""Keep requests that wait, and say whose turn it is.

Owns order and bounds, and knows no engine: what a request waits for is a target, one engine or any of a set.
A turn goes to the highest band; within it to the flow that has been served least (start-time fair queueing
over tokens), of those with a request for a target that is open; within the flow to the earliest deadline,
else to who came first. A flow that comes back is served as one that has had its share: nobody saves up turns.

Every operation takes time logarithmic in what waits, but for shifts within sorted lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epp.errors import NotAdmittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from epp.config.schema import QueueSection
    from epp.schedule.decision import Decision
    from epp.schedule.programs import Program
    from epp.types import RequestInfo

#: An engine's slot, or the slots of all that may serve a request.
Target = int | frozenset[int]
#: Whichever engine comes: the pool has none.
ANY: frozenset[int] = frozenset()
#: Flows without a request that a band remembers, beside two for each request.
_IDLE_FLOWS = 1000


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits, and then what became of it.

    Attributes:
        request: what is known of it; its priority is its band.
        flow: whose it is; flows of a band share it fairly.
        held_bytes: what it keeps in memory.
        came_s: when it came.
        best: what it waits for: the engine that serves it best.
        others: what it waits for as well once its patience is over: all that may serve it.
        patience_s: how long that takes.
        deadline_s: when its first token is due, infinite where it is not.
        expires_s: when it is dropped: its time to live is over, or its deadline cannot be met any more.
        decision: where it goes.
        refusal: why it goes nowhere.
        program: the session that it is a turn of, None where nobody asked.
        held: it waits for a place of its program (`epp.schedule.program_gate`).
    """

    request: RequestInfo
    flow: str
    held_bytes: int
    came_s: float
    best: Target
    others: frozenset[int]
    patience_s: float
    deadline_s: float
    expires_s: float
    decision: Decision | None = None
    refusal: Exception | None = None
    program: Program | None = None
    held: bool = False
    number: int = 0
    impatient: bool = False

    @property
    def settled(self) -> bool:
        """Whether it waits no more."""
        return self.decision is not None or self.refusal is not None

    @property
    def tokens(self) -> float:
        """What its flow is charged."""
        return self.request.prompt_tokens + self.request.expected_output_tokens

    @property
    def targets(self) -> tuple[Target, ...]:
        """What it may be bound to by now; its best engine first."""
        return (self.best, self.others) if self.impatient and self.best != self.others else (self.best,)

    def place(self, target: Target) -> _Place:
        """Say when its turn is among its flow's requests for a target.

        Where it is not served best, it stands behind whoever came until its patience was over: a long queue
        keeps caches as warm as a short one.
        """
        late_s = 0.0 if target == self.best else self.patience_s
        dateless = math.isinf(self.deadline_s)
        return dateless, (self.came_s if dateless else self.deadline_s) + late_s, self.number, self

    @property
    def due_s(self) -> float:
        """When something is to be done about it whatever opens."""
        return (
            self.expires_s
            if self.impatient or self.best == self.others
            else min(self.came_s + self.patience_s, self.expires_s)
        )


_Place = tuple[bool, float, int, Waiter]


@dataclass(slots=True, eq=False)
class _Flow:
    number: int
    served: float
    waiting: dict[Target, list[_Place]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Band:
    """One priority: its flows, by target in the order of what they were served."""

    requests: int = 0
    held_bytes: int = 0
    served: float = 0.0
    numbers: int = 0
    flows: dict[str, _Flow] = field(default_factory=dict)
    turns: dict[Target, list[tuple[float, int, _Flow]]] = field(default_factory=dict)

    def _flow(self, name: str) -> _Flow:
        flow = self.flows.get(name)
        if flow is None:
            if len(self.flows) > _IDLE_FLOWS + 2 * self.requests:
                self.flows = {name: flow for name, flow in self.flows.items() if flow.waiting}
            self.numbers += 1
            flow = self.flows[name] = _Flow(self.numbers, self.served)
        if not flow.waiting:
            flow.served = max(flow.served, self.served)
        return flow

    def add(self, waiter: Waiter, target: Target) -> None:
        flow = self._flow(waiter.flow)
        mine = flow.waiting.get(target)
        if mine is None:
            mine = flow.waiting[target] = []
            insort(self.turns.setdefault(target, []), (flow.served, flow.number, flow))
        insort(mine, waiter.place(target))

    def remove(self, waiter: Waiter) -> None:
        flow = self.flows[waiter.flow]
        for target in waiter.targets:
            mine = flow.waiting[target]
            del mine[bisect_left(mine, waiter.place(target)[:3])]
            if not mine:
                del flow.waiting[target]
                self._drop_turn(flow, target)

    def _drop_turn(self, flow: _Flow, target: Target) -> None:
        turns = self.turns[target]
        del turns[bisect_left(turns, (flow.served, flow.number))]
        if not turns:
            del self.turns[target]

    def charge(self, name: str, tokens: float) -> None:
        """Count what a flow was served."""
        flow = self._flow(name)
        for target in flow.waiting:
            self._drop_turn(flow, target)
        flow.served += tokens
        for target in flow.waiting:
            insort(self.turns.setdefault(target, []), (flow.served, flow.number, flow))

    def first(self, targets: Collection[int]) -> Waiter | None:
        """Find whose turn it is among those with a request for an open target."""
        turns = self.turns
        found: tuple[float, int, _Flow] | None = None
        where: Target = 0
        for target in turns:
            if _has(target, targets):
                head = turns[target][0]
                if found is None or _comes_before(head, target, found, where):
                    found, where = head, target
        if found is None:
            return None
        self.served = max(self.served, found[0])
        return found[2].waiting[where][0][3]


def _has(target: Target, slots: Collection[int]) -> bool:
    """Tell whether a target is among open engines."""
    return target in slots if isinstance(target, int) else target == ANY or not target.isdisjoint(slots)


def _comes_before(
    head: tuple[float, int, _Flow], target: Target, found: tuple[float, int, _Flow], where: Target
) -> bool:
    """Compare flows; the requests of one flow by deadline and arrival."""
    if head[2] is found[2]:
        return head[2].waiting[target][0][:3] < head[2].waiting[where][0][:3]
    return head < found


class RequestQueue:
    """Bands of flows of requests.

    Args:
        settings: bounds of each band.
    """

    def __init__(self, settings: QueueSection) -> None:
        self.settings = settings
        self._bands: dict[int, _Band] = {}
        self._due: list[tuple[float, int, Waiter]] = []
        self._numbers = 0

    def __len__(self) -> int:
        """Count the requests that wait."""
        return len(self._due)

    @property
    def due_s(self) -> float:
        """When the next request is due for something, infinite where none is."""
        return self._due[0][0] if self._due else math.inf

    @property
    def bands(self) -> list[int]:
        """Priorities of what waits, the highest first."""
        return sorted((band for band, its in self._bands.items() if its.requests), reverse=True)

    def ahead_of(self, priority: int) -> int:
        """Count what waits in a band and those above it."""
        return sum(band.requests for other, band in self._bands.items() if other >= priority)

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """Count requests and bytes that wait, by band."""
        return ((band, its.requests, its.held_bytes) for band, its in self._bands.items())

    def put(self, waiter: Waiter) -> None:
        """Let a request wait.

        Raises:
            NotAdmittedError: its band is full.
        """
        band, full = self._bands.get(waiter.request.priority), self.settings
        if band is not None and (
            band.requests >= full.max_requests or band.held_bytes + waiter.held_bytes > full.max_bytes
        ):
            raise NotAdmittedError("the queue is full", "queue-full")
        self._numbers += 1
        waiter.number = self._numbers
        self._add(waiter)

    def _add(self, waiter: Waiter) -> None:
        band = self._bands.setdefault(waiter.request.priority, _Band())
        for target in waiter.targets:
            band.add(waiter, target)
        band.requests += 1
        band.held_bytes += waiter.held_bytes
        insort(self._due, (waiter.due_s, waiter.number, waiter))

    def remove(self, waiter: Waiter) -> None:
        """Let a request wait no more."""
        del self._due[bisect_left(self._due, (waiter.due_s, waiter.number))]
        priority = waiter.request.priority
        band = self._bands[priority]
        band.remove(waiter)
        band.requests -= 1
        band.held_bytes -= waiter.held_bytes
        if not band.requests:
            del self._bands[priority]  # and with it what its flows were served: nobody competes

    def served(self, priority: int, flow: str, tokens: float) -> None:
        """Count a request that went without waiting, where others of its band wait."""
        if band := self._bands.get(priority):
            band.charge(flow, tokens)

    def take(self, open_to: Callable[[int], Collection[int]]) -> Waiter | None:
        """Take the request whose turn it is, of those that wait for an open engine.

        Args:
            open_to: from a band to the slots of the engines that are open to it.
        """
        for priority in self.bands:
            band = self._bands[priority]
            if (targets := open_to(priority)) and (waiter := band.first(targets)) is not None:
                self.remove(waiter)
                return waiter
        return None

    def expire(self, now_s: float) -> list[Waiter]:
        """Take those whose time is over; let those whose patience is over wait for any engine."""
        gone: list[Waiter] = []
        while self._due and self._due[0][0] <= now_s:
            waiter = self._due[0][2]
            self.remove(waiter)
            if waiter.expires_s <= now_s:
                gone.append(waiter)
            else:
                self.put_back(waiter, impatient=True)
        return gone

    def put_back(self, waiter: Waiter, *, impatient: bool) -> None:
        """Let a request that was taken wait on, for its best engine alone or for any."""
        waiter.impatient = impatient
        self._add(waiter)

    def waiting(self) -> list[Waiter]:
        """List all that wait."""
        return [waiter for _, _, waiter in self._due]
