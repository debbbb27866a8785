"""A simulated deployment that lives with a tuner, in virtual time: to show the tuner, and to measure it.

Owns the stretches of time that a simulation is cut into, and how samples and weights travel between the
fleet's clock and the tuner's. Decides nothing: picker, plan, thresholds and verdicts are the production ones.

Rules
- Weights reach the picker as the file that the tuner would write, parsed as the picker parses it.
- A sample is known to the tuner at the first look after its answer ended, as with records.
- Each stretch begins with empty caches and a picker that knows nothing, like a deployment that was restarted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import msgspec
import msgspec.yaml

from epp.sim.fleet import ZERO_WALL_S, FleetSim
from epp.sim.loop import Rank
from epp.sim.run import policy_named
from epp.sim.scenario import WindowOptions
from epp.tuner import machine
from epp.tuner.plan import Plan, assign, render_plan
from epp.tuner.samples import Sample, read_stamp
from epp.tuner.state import Note, NothingBetter, Observed, Proposed, Publish, Rehearse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.decide.picker import Picker
    from epp.decide.weights import WeightBook
    from epp.replay.trace import TraceRequest
    from epp.sim.results import SimResult
    from epp.sim.scenario import FleetSpec
    from epp.tuner.state import Action, Event, Rules, State

#: Time between two looks of the tuner at its records.
TICK_S = 15.0
#: Unix time at which deployments begin.
BEGIN_WALL_S = ZERO_WALL_S
_SOURCE = "weights.yaml"


class Observer(Protocol):
    """Who looks at a stretch while it runs."""

    def answered(self, sample: Sample) -> None:
        """A request is over."""
        ...

    def look(self, now_wall_s: float) -> None:
        """Some time has passed."""
        ...


class Stretch(FleetSim):
    """A simulated window whose weights may change while it runs.

    Args:
        requests: the load.
        spec: the fleet.
        policy: name of a policy.
        weights: those that differ from its defaults.
        seed: of network and draws.
        observer: told of answers and of time.
        begin_wall_s: Unix time of its start.
        options: how the load is sent.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        spec: FleetSpec,
        policy: str,
        weights: Mapping[str, float],
        *,
        seed: int,
        observer: Observer,
        begin_wall_s: float = BEGIN_WALL_S,
        options: WindowOptions | None = None,
    ) -> None:
        self._sent: dict[int, tuple[float, str, str]] = {}
        self._observer = observer
        self.book: WeightBook
        super().__init__(
            requests,
            spec,
            policy_named(policy),
            weights=weights,
            seed=seed,
            options=options or WindowOptions(closed_loop=False),
        )
        # The fleet's clock starts at the same wall time in every stretch.
        self._shift_s = begin_wall_s - ZERO_WALL_S - self.start_ms / 1e3
        self.loop.at(self.start_ms, Rank.SIGNAL, self._look)

    def publish(self, plan: Plan) -> None:
        """Put the tuner's file in force."""
        trial = plan.trial
        if trial is not None:
            trial = msgspec.structs.replace(
                trial,
                valid_from_wall_s=trial.valid_from_wall_s - self._shift_s,
                valid_until_wall_s=trial.valid_until_wall_s - self._shift_s,
            )
        self.book.update("tuner", render_plan(msgspec.structs.replace(plan, trial=trial)), _SOURCE)

    def override(self, weights: Mapping[str, float]) -> None:
        """Put weights in force as an operator may: within the policy's own bounds alone."""
        self.book.update("override", msgspec.yaml.encode({"weights": dict(weights)}), "overrides.yaml")

    @property
    def busy(self) -> bool:
        """Whether anything is under way or still to be sent."""
        return self._client.unfinished

    @property
    def lasted_s(self) -> float:
        """How far it is."""
        return self.loop.now_ms / 1e3 - self.start_ms / 1e3

    def over(self, result: SimResult) -> None:
        """A request has its result."""
        wall_s, stamp, version = self._sent.pop(result.index)
        super().over(result)
        request = self.requests[result.index]
        self._observer.answered(
            Sample(
                id=result.decision_id,
                stamp=read_stamp(stamp),
                weights_version=version,
                dispatched_wall_s=wall_s + self._shift_s,
                ended_wall_s=ZERO_WALL_S + self.loop.now_ms / 1e3 + self._shift_s,
                endpoint=result.endpoint,
                session=request.session,
                prompt_tokens=request.prompt_tokens,
                ttft_ms=math.nan if result.ttft_ms is None else result.ttft_ms,
                e2e_ms=result.e2e_ms,
                itl_ms=math.nan if result.itl_ms is None else result.itl_ms,
                answer_tokens=result.completion_tokens,
                failed=not result.ok,
            )
        )

    def _build_picker(self, weights: Mapping[str, float]) -> Picker:
        picker = super()._build_picker(weights)
        self.book = picker.weights
        return picker

    def _send(self, index: int, intended_ms: float) -> None:
        # The picker asks the same rule the same question.
        wall_s = ZERO_WALL_S + self.loop.now_ms / 1e3
        stamp = assign(self.book.plan, wall_s, self.requests[index].session).stamp
        arm = stamp.split("/")[1] if stamp else ""
        served = self.book.arm_weights if arm in ("candidate", "previous") else self.book.current
        self._sent[index] = wall_s, stamp, served.version
        super()._send(index, intended_ms)

    def _look(self) -> None:
        self._observer.look(ZERO_WALL_S + self.loop.now_ms / 1e3 + self._shift_s)
        self.loop.at(self.loop.now_ms + TICK_S * 1e3, Rank.SIGNAL, self._look)


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of evidence as it came in.

    Attributes:
        at_s: when, since the deployment began.
        slow: difference of the share of slow requests, newer weights less older ones.
        e2e: the same of requests with slow E2E.
    """

    at_s: float
    slow: float
    e2e: float


@dataclass(slots=True)
class Life:
    """A tuner and the deployment that it tunes, from stretch to stretch.

    Attributes:
        policy: that is tuned.
        fleet: number of the stretch -> the replicas then; or the same ones always.
        load: number of the stretch -> its requests; -1 is what was recorded before the beginning.
        state: the tuner's.
        rules: settings and bounds.
        rehearse: answers the tuner's wish for a candidate: told state, time and the requests of late.
        stop: asked at each look whether enough was seen.
        seed: of network and draws.
        tell: takes sentences.
        now_wall_s: when the present stretch began.
        notes: what the tuner said.
        samples: every request that was answered.
        evidence: number of the candidate and its stage -> units of evidence.
        over: whether `stop` said so.
    """

    policy: str
    fleet: FleetSpec | Callable[[int], FleetSpec]
    load: Callable[[int], Sequence[TraceRequest]]
    state: State
    rules: Rules
    rehearse: Callable[[State, float, Sequence[TraceRequest]], Proposed | NothingBetter]
    stop: Callable[[State], bool]
    seed: int = 0
    tell: Callable[[Note], None] = field(default=lambda _: None)
    now_wall_s: float = BEGIN_WALL_S
    notes: list[Note] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    evidence: dict[tuple[int, str], list[Piece]] = field(default_factory=dict)
    over: bool = False
    _new: list[Sample] = field(default_factory=list)
    _asked: str = ""
    _stretch: Stretch | None = None
    _requests: Sequence[TraceRequest] = ()
    _before: Sequence[TraceRequest] = ()

    def run(self, *, stretches: int) -> None:
        """Live until `stop` says so, or so many stretches are over."""
        for number in range(stretches):
            if self.over:
                return
            self._before = self._requests or self.load(-1)
            self._requests = self.load(number)
            self._stretch = stretch = Stretch(
                self._requests,
                self.fleet_at(number),
                self.policy,
                self.state.incumbent,
                seed=self.seed + number,
                observer=self,
                begin_wall_s=self.now_wall_s,
            )
            stretch.publish(machine.plan_of(self.state))
            stretch.loop.run(lambda stretch=stretch: stretch.busy and not self.over)  # type: ignore[misc]  # bound now
            self.now_wall_s += math.ceil(stretch.lasted_s / TICK_S) * TICK_S

    def fleet_at(self, number: int) -> FleetSpec:
        """The replicas of a stretch."""
        return self.fleet(number) if callable(self.fleet) else self.fleet

    def _recorded(self, now_wall_s: float) -> Sequence[TraceRequest]:
        """What was sent of late: of this stretch, or of the one before it while that has more."""
        sent_ms = 1e3 * (now_wall_s - self.now_wall_s)
        sent = [request for request in self._requests if request.at_ms <= sent_ms]
        return sent if len(sent) >= len(self._before) / 2 else self._before

    def answered(self, sample: Sample) -> None:
        """A request is over."""
        self._new.append(sample)
        self.samples.append(sample)

    def look(self, now_wall_s: float) -> None:
        """What a tuner does at each look."""
        new, self._new = self._new, []
        self._take(Observed(now_wall_s, new))
        if self._asked:
            self._asked = ""
            self._take(self.rehearse(self.state, now_wall_s, self._recorded(now_wall_s)))
        state = self.state
        if state.record.units:
            known = self.evidence.setdefault((state.number, f"{state.phase} {state.stage}"), [])
            at_s = now_wall_s - BEGIN_WALL_S
            known += [Piece(at_s, unit.slow, unit.e2e) for unit in state.record.units[len(known) :]]
        self.over = self.over or self.stop(state)

    def _take(self, event: Event) -> None:
        self.state, actions = machine.step(self.state, event, self.rules)
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        if isinstance(action, Publish) and self._stretch is not None:
            self._stretch.publish(action.plan)
        elif isinstance(action, Rehearse):
            self._asked = action.reason
        elif isinstance(action, Note):
            self.notes.append(action)
            self.tell(action)


def at_rate(requests: Sequence[TraceRequest], factor: float) -> tuple[TraceRequest, ...]:
    """The same requests, so many times as fast; sent at their own time whatever is answered."""
    return tuple(replace(request, at_ms=request.at_ms / factor, after=None) for request in requests)
