"""Keep requests that wait, and say whose turn it is.

Owns order and bounds, and knows no engine: what a request waits for is a target, one engine or any of a set.
A turn goes to the highest band; within it to the flow that has been served least (start-time fair queueing
over tokens, or over turns: round robin), of those with a request for a target that is open; within the flow
to the earliest deadline, else to who came first. A flow that comes back is served as one that has had its
share: nobody saves up turns, except where a band counts what was served lately. What other pickers tell of
their queues counts, too: what waits there, and what flows were served there.

Every operation takes time logarithmic in what waits, but for shifts within sorted lists; with that exception
it looks at each flow.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING

import numpy as np

from epp.errors import NotAdmittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from epp.config.schema import BandSettings, QueueSection
    from epp.schedule.decision import Decision
    from epp.schedule.programs import Program
    from epp.types import Floats, RequestInfo

#: An engine's slot, or the slots of all that may serve a request.
Target = int | frozenset[int]
#: Whichever engine comes: the pool has none.
ANY: frozenset[int] = frozenset()
#: Requests that one look drops, moves, or lets go or puts back; the event loop has a turn before the next.
MOST_TURNS = 64
#: Flows without a request that a band remembers, beside two for each request.
_IDLE_FLOWS = 1000
#: Flows of a band that other pickers are told of at once.
MAX_FLOWS = 64
#: What waits in a band at a picker: requests, how many seconds ago the next one came, and flows, each with
#: the tokens that it was served since the picker told before.
BandState = tuple[int, float, dict[str, float]]
_NONE: BandState = (0, 0.0, {})
#: Flows whose attained service is remembered: its logarithm, for one whose service is long past.
_ATTAINED_FLOWS, _NEVER = 10_000, -1e9
#: Kinds of fairness that count what was served while nothing waited.
_BY_HISTORY = ("program-aware", "turn-priority")


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
        wanted: address of its best engine when it came, ``""`` for any.
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
    wanted: str = ""
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

        One that an engine refused is the first. Where a request is not served best, it stands behind whoever
        came until its patience was over: a long queue uses caches as well as a short one.
        """
        late_s = 0.0 if target == self.best else self.patience_s
        dateless = math.isinf(self.deadline_s)
        return (
            -1 if self.request.came_s else dateless,
            (self.came_s if dateless else self.deadline_s) + late_s,
            self.number,
            self,
        )

    @property
    def due_s(self) -> float:
        """When something is to be done about it whatever opens."""
        return (
            self.expires_s
            if self.impatient or self.best == self.others
            else min(self.came_s + self.patience_s, self.expires_s)
        )


_Place = tuple[int, float, int, Waiter]


@dataclass(slots=True, eq=False)
class _Flow:
    name: str
    served: float
    waiting: dict[Target, list[_Place]] = field(default_factory=dict)
    untold: float = 0.0


@dataclass(slots=True, eq=False)
class _Band:
    """One priority: its flows, by target in the order of what they were served, tokens or rounds."""

    settings: BandSettings
    attained: dict[str, float]
    had_turns: dict[str, tuple[int, float]]
    requests: int = 0
    held_bytes: int = 0
    served: float = 0.0
    last: str = ""
    flows: dict[str, _Flow] = field(default_factory=dict)
    turns: dict[Target, list[tuple[float, str, _Flow]]] = field(default_factory=dict)
    #: What waits at other pickers, by picker: requests, when the next one came, flows.
    elsewhere: dict[str, tuple[int, float, list[_Flow]]] = field(default_factory=dict)

    @property
    def rounds(self) -> bool:
        """Whether flows take turns by name."""
        return self.settings.fairness == "round-robin"

    @property
    def requests_elsewhere(self) -> int:
        return sum(requests for requests, _, _ in self.elsewhere.values())

    def state(self, now_s: float) -> BandState:
        """Tell what waits; what was served is told once."""
        flows = [(flow.untold, name) for name, flow in self.flows.items() if flow.waiting or flow.untold]
        for flow in self.flows.values():
            flow.untold = 0.0
        turn = self.first()
        age_s = 0.0 if turn is None else now_s - turn.came_s
        return self.requests, age_s, {name: tokens for tokens, name in nlargest(MAX_FLOWS, flows)}

    def hear(self, origin: str, state: BandState, now_s: float) -> None:
        """Take what another picker tells."""
        requests, age_s, charges = state
        # A flow that only waits there was served nothing: it loses no turn by that.
        flows = [
            self.charge(name, tokens) if tokens else self._flow(name) for name, tokens in charges.items()
        ]
        self.elsewhere.pop(origin, None)
        if requests:
            self.elsewhere[origin] = requests, now_s - age_s, flows
            self.served = max(self.served, _least(flows))

    def before(self, waiter: Waiter) -> int:
        """Count what waits at the pickers whose next request goes before this one."""
        turn = self._flow(waiter.flow).served, waiter.came_s
        waits = self.elsewhere.values()
        return sum(requests for requests, came_s, flows in waits if (_least(flows), came_s) < turn)

    def _flow(self, name: str) -> _Flow:
        name = "" if self.settings.fairness == "global-strict" else name
        flow = self.flows.get(name)
        if flow is None:
            if len(self.flows) > _IDLE_FLOWS + 2 * self.requests:
                self.flows = {name: flow for name, flow in self.flows.items() if flow.waiting}
            flow = self.flows[name] = _Flow(name, self.served)
        if not (flow.waiting or any(flow in flows for _, _, flows in self.elsewhere.values())):
            flow.served = max(flow.served, self.served + (self.rounds and name < self.last))
        return flow

    def add(self, waiter: Waiter, target: Target) -> None:
        flow = self._flow(waiter.flow)
        mine = flow.waiting.get(target)
        if mine is None:
            mine = flow.waiting[target] = []
            insort(self.turns.setdefault(target, []), (flow.served, flow.name, flow))
        insort(mine, waiter.place(target))

    def remove(self, waiter: Waiter) -> None:
        flow = self._flow(waiter.flow)
        for target in waiter.targets:
            mine = flow.waiting[target]
            del mine[bisect_left(mine, waiter.place(target)[:3])]
            if not mine:
                del flow.waiting[target]
                self._drop_turn(flow, target)

    def _drop_turn(self, flow: _Flow, target: Target) -> None:
        turns = self.turns[target]
        del turns[bisect_left(turns, (flow.served, flow.name))]
        if not turns:
            del self.turns[target]

    def charge(self, name: str, tokens: float) -> _Flow:
        """Count what a flow was served."""
        flow = self._flow(name)
        for target in flow.waiting:
            self._drop_turn(flow, target)
        flow.served = self.served + 1.0 if self.rounds else flow.served + tokens
        self.last = flow.name
        for target in flow.waiting:
            insort(self.turns.setdefault(target, []), (flow.served, flow.name, flow))
        return flow

    def first(self, targets: Collection[int] | None = None) -> Waiter | None:
        """Find whose turn it is among those with a request for an open target, or for any."""
        if self.settings.fairness in _BY_HISTORY:
            return self._by_history(targets)
        turns = self.turns
        found: tuple[float, str, _Flow] | None = None
        where: Target = 0
        for target in turns:
            if targets is None or _has(target, targets):
                head = turns[target][0]
                if found is None or _comes_before(head, target, found, where):
                    found, where = head, target
        if found is None:
            return None
        self.served = max(self.served, found[0])
        return found[2].waiting[where][0][3]

    def _by_history(self, targets: Collection[int] | None) -> Waiter | None:
        """Weigh what each flow was served lately, or its turns, and how long its first request waits."""
        heads = [
            flow.waiting[target][0][3]
            for target, turns in self.turns.items()
            if targets is None or _has(target, targets)
            for *_, flow in turns
        ]
        if not heads:
            return None
        if self.settings.fairness == "turn-priority":
            return max(
                heads, key=lambda head: self._turn(head) - self.settings.turn_wait_weight * head.came_s
            )
        attained = np.array([self.attained.get(head.flow, _NEVER) for head in heads])
        served, came = np.exp2(attained - attained.max()), np.array([head.came_s for head in heads])
        weights = self.settings.las_weight_service, self.settings.las_weight_head_wait
        return heads[int((weights[0] * _scaled(served) + weights[1] * _scaled(came)).argmin())]

    def _turn(self, head: Waiter) -> int:
        """Count the turns of a flow since it was idle, this one among them."""
        return _turn_after(self.had_turns.get(head.flow), head.came_s, self.settings)


def _turn_after(had: tuple[int, float] | None, at_s: float, settings: BandSettings) -> int:
    """Count a flow's turns since it was idle, one now among them; it ``had`` so many, and the last then."""
    turns, last_s = had or (0, -math.inf)
    return 1 if at_s - last_s > (settings.turn_idle_s or math.inf) else turns + 1


def _scaled(values: Floats) -> Floats:
    """Scale to 0 for the least and 1 for the most."""
    scaled: Floats = (values - values.min()) / (np.ptp(values) or 1.0)
    return scaled


def _least(flows: Iterable[_Flow]) -> float:
    """Return what the flow was served whose turn is next."""
    return min((flow.served for flow in flows), default=0.0)


def _has(target: Target, slots: Collection[int]) -> bool:
    """Tell whether a target is among open engines."""
    return target in slots if isinstance(target, int) else target == ANY or not target.isdisjoint(slots)


def _comes_before(
    head: tuple[float, str, _Flow], target: Target, found: tuple[float, str, _Flow], where: Target
) -> bool:
    """Compare flows; the requests of one flow by deadline and arrival."""
    if head[2] is found[2]:
        return head[2].waiting[target][0][:3] < head[2].waiting[where][0][:3]
    return head < found


class RequestQueue:
    """Bands of flows of requests.

    Args:
        settings: bounds and order of each band.

    Attributes:
        tell: asks for `state` to be told to other pickers soon, with ``urgent=True`` at once.
        attains: whether a band counts what flows were served while nothing waited.
    """

    def __init__(self, settings: QueueSection) -> None:
        self.settings = settings
        self._bands: dict[int, _Band] = {}
        self._due: list[tuple[float, int, Waiter]] = []
        self._numbers = 0
        self.tell: Callable[..., None] = lambda **_: None
        #: Logarithm of what each flow was served, where tokens count twice as much with each half-life.
        self._attained: dict[str, float] = {}
        #: How many turns each flow had, and when the last, of bands by turns.
        self._turns: dict[str, tuple[int, float]] = {}
        bands = (settings, settings.negative or settings, *settings.bands)
        lives = [band.half_life_s or math.inf for band in bands if band.fairness == "program-aware"]
        self.attains = any(band.fairness in _BY_HISTORY for band in bands)
        self._half_life_s = min(lives, default=math.inf)

    def __len__(self) -> int:
        """Count the requests that wait."""
        return len(self._due)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, here or elsewhere."""
        return not self._bands

    @property
    def due_s(self) -> float:
        """When the next request is due for something, infinite where none is."""
        return self._due[0][0] if self._due else math.inf

    @property
    def bands(self) -> list[int]:
        """Priorities of what waits, the highest first."""
        return sorted((band for band, its in self._bands.items() if its.requests), reverse=True)

    def ahead_of(self, priority: int) -> int:
        """Count what waits in a band and those above it, at all pickers."""
        bands = self._bands.items()
        return sum(its.requests + its.requests_elsewhere for band, its in bands if band >= priority)

    def before(self, priority: int, targets: Collection[int], newcomer: Waiter | None) -> int:
        """Count what goes first elsewhere: before a newcomer, or before the next for an open engine."""
        found = sum(its.requests_elsewhere for band, its in self._bands.items() if band > priority)
        if (band := self._bands.get(priority)) and (turn := newcomer or band.first(targets)):
            found += band.before(turn)
        return found

    def fill(self) -> dict[int, tuple[float, float]]:
        """Return what part of its bounds in requests and bytes each band uses."""
        named = {0, *self._bands, *(band.priority for band in self.settings.bands)}
        return {
            priority: (its.requests / its.settings.max_requests, its.held_bytes / its.settings.max_bytes)
            for priority, its in ((one, self._band(one)) for one in named)
        }

    def total_fill(self) -> tuple[float, float]:
        """Return the same of all bands together."""
        held_bytes = sum(its.held_bytes for its in self._bands.values())
        return len(self) / self.settings.total_requests, held_bytes / self.settings.total_bytes

    def state(self, now_s: float) -> dict[int, BandState]:
        """Tell what waits here; what was served is told once."""
        return {priority: band.state(now_s) for priority, band in self._bands.items()}

    def hear(self, origin: str, state: Mapping[int, BandState], now_s: float) -> None:
        """Take what another picker tells, nothing of one that is gone."""
        for priority in self._bands.keys() | state.keys():
            band = self._bands[priority] = self._band(priority)
            band.hear(origin, state.get(priority, _NONE), now_s)
            self._forget(priority)

    def _forget(self, priority: int) -> None:
        """Forget a band, and what its flows were served, where nobody competes."""
        band = self._bands[priority]
        if not (band.requests or band.elsewhere):
            del self._bands[priority]

    def is_full(self, waiter: Waiter) -> bool:
        """Tell whether there is no place for one more."""
        total, band = self.settings, self._band(waiter.request.priority)
        all_bytes = sum(its.held_bytes for its in self._bands.values())
        return (
            band.requests >= band.settings.max_requests
            or band.held_bytes + waiter.held_bytes > band.settings.max_bytes
            or len(self) >= total.total_requests
            or all_bytes + waiter.held_bytes > total.total_bytes
        )

    def _band(self, priority: int) -> _Band:
        """Return a band, a new one where it is the first."""
        return self._bands.get(priority) or _Band(self.settings.of(priority), self._attained, self._turns)

    def put(self, waiter: Waiter) -> None:
        """Let a request wait.

        Raises:
            NotAdmittedError: its band, or the queue, is full.
        """
        if self.is_full(waiter):
            raise NotAdmittedError("the queue is full", "queue-full")
        self._numbers += 1
        waiter.number = self._numbers
        self._add(waiter)
        self.tell()

    def _add(self, waiter: Waiter) -> None:
        priority = waiter.request.priority
        band = self._bands[priority] = self._band(priority)
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
        self._forget(priority)

    def attained(self, now_s: float) -> dict[str, float]:
        """Return what flows were served of late, in tokens, by their names.

        Where bands have different half-lives, flows of those with longer ones show too little.
        """
        return {flow: 2.0 ** (served - now_s / self._half_life_s) for flow, served in self._attained.items()}

    def served(self, priority: int, flow: str, tokens: float, now_s: float) -> None:
        """Count a request that went: for those of its band that wait, or for what its flow attained."""
        settings = self.settings.of(priority)
        if settings.fairness == "program-aware":
            now = math.log2(max(tokens, 1.0)) + now_s / (settings.half_life_s or math.inf)
            self._attained[flow] = float(np.logaddexp2(self._attained.pop(flow, _NEVER), now))
            if len(self._attained) > _ATTAINED_FLOWS:
                del self._attained[next(iter(self._attained))]
        elif settings.fairness == "turn-priority":
            self._turns[flow] = (_turn_after(self._turns.pop(flow, None), now_s, settings), now_s)
            if len(self._turns) > _ATTAINED_FLOWS:
                del self._turns[next(iter(self._turns))]
        if band := self._bands.get(priority):
            band.charge(flow, tokens).untold += tokens

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
        """Take those whose time is over; let those whose patience is over wait for any engine.

        What is more than one look does is still due.
        """
        gone: list[Waiter] = []
        for _ in range(MOST_TURNS):
            if self.due_s > now_s:
                break
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
