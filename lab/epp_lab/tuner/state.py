"""The tuner's whole memory as plain data, what happens to it, and what it asks for.

Owns no rule: `epp_lab.tuner.machine` does. A state is persisted as JSON, so that a tuner that was killed
goes on where it was: persist the state first, then do the actions. An action that was not done is done
after the restart (`epp_lab.tuner.machine.resume`); doing one twice changes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from epp.config.plan import Plan, Split, Switchback  # noqa: TC001  # msgspec reads annotations at run time
from epp.records.weight_files import Change  # noqa: TC001
from epp_lab.tuner.search import Measured  # noqa: TC001
from epp_lab.tuner.settings import TunerSettings
from epp_lab.tuner.tally import Baseline, Record, Thresholds
from epp_lab.tuner.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.tuner.samples import Sample

#: Changes of the incumbent that are remembered, and weights that a trial ended.
HISTORY, REFUSED = 200, 50

Phase = Literal["baseline", "search", "screen", "ramp", "switchback", "probation", "frozen"]
TRIALS = frozenset({"screen", "ramp", "switchback", "probation"})


class Features(msgspec.Struct, frozen=True):
    """What a stretch of time looked like.

    Attributes:
        weights_version: in force.
        rate_per_s: requests a second.
        prompt_tokens: mean.
        slow_share: share above the frozen threshold.
    """

    weights_version: str
    rate_per_s: float
    prompt_tokens: float
    slow_share: float


class TunerState(msgspec.Struct, kw_only=True):
    """Everything. See `epp_lab.tuner.machine` for what moves it.

    Attributes:
        policy: whose weights they are.
        incumbent: weights in force.
        settings: what its tuner goes by; a start compares it with its own.
        phase: where in its life the candidate is; ``baseline``, ``search`` and ``frozen`` have none running.
        since_wall_s: when this phase began.
        reason: why, in words.
        candidate: weights on trial, or waiting for a fresh baseline.
        previous: the old incumbent during probation.
        number: candidates so far; the one on trial has this number.
        stage: position among the shares of a split.
        segment: schedules so far within this stage.
        tests: candidates that reached a switchback: the row over which false promotions are held.
        promotions: of them.
        fruitless: candidates in a row that were not promoted.
        serial: contents published.
        published_wall_s: when the last was.
        published: digest of the last content published.
        trial: schedule in force, none while paused.
        paused: why the trial waits, empty when it does not.
        paused_wall_s: since when it does.
        pause_until_wall_s: the trial waits at least until then.
        unwell: times that this candidate was paused because the fleet failed.
        thresholds: frozen.
        baseline: the incumbent by itself.
        record: evidence of this stage.
        watch: the whole fleet, before a trial and during it.
        ended_for_fleet: trials that ended because the whole fleet suffered.
        cool_until_wall_s: no baseline begins before this.
        held: frozen by request: only a request thaws.
        reference: what the time after freezing looked like.
        pins: weights that the operator fixed.
        clock_wall_s: latest time heard of.
        history: incumbents, oldest first.
        measured: what the search has measured from this incumbent.
        refused: weights that a live trial ended or an operator took back; they are not proposed again.
        rehearsal_failed: why the last rehearsal failed, empty when it did not.
    """

    policy: str
    incumbent: dict[str, float]
    settings: TunerSettings = TunerSettings()
    phase: Phase = "baseline"
    since_wall_s: float = 0.0
    reason: str = "first start"
    candidate: dict[str, float] | None = None
    previous: dict[str, float] | None = None
    number: int = 0
    stage: int = 0
    segment: int = 0
    tests: int = 0
    promotions: int = 0
    fruitless: int = 0
    serial: int = 0
    published_wall_s: float = 0.0
    published: str = ""
    trial: Split | Switchback | None = None
    paused: str = ""
    paused_wall_s: float = 0.0
    pause_until_wall_s: float = 0.0
    unwell: int = 0
    thresholds: Thresholds | None = None
    baseline: Baseline = msgspec.field(default_factory=Baseline)
    record: Record = msgspec.field(default_factory=Record)
    watch: Watch = msgspec.field(default_factory=Watch)
    ended_for_fleet: int = 0
    cool_until_wall_s: float = 0.0
    held: bool = False
    reference: Features | None = None
    pins: dict[str, float] = {}
    clock_wall_s: float = 0.0
    history: list[Change] = []
    measured: Measured | None = None
    refused: list[dict[str, float]] = []
    rehearsal_failed: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine goes by besides its state; may differ after a restart.

    Attributes:
        settings: the configuration.
        bounds: ``(low, high)`` of each weight that may be tuned, from `epp.config.bounds.tuner_bounds`.
        starting: their values by the configuration, for what an older state does not name.
    """

    settings: TunerSettings
    bounds: Mapping[str, tuple[float, float]]
    starting: Mapping[str, float] = field(default_factory=dict)


class Observed(NamedTuple):
    """Time has passed, and records were read; also sent when there were none.

    Attributes:
        now_wall_s: the time.
        samples: new ones, each once; requests given up waiting for included.
        skew_s: by how much clocks of pickers differ.
    """

    now_wall_s: float
    samples: Sequence[Sample] = ()
    skew_s: float = 0.0


class Proposed(NamedTuple):
    """Search and rehearsal favour a candidate."""

    now_wall_s: float
    weights: Mapping[str, float]
    reason: str


class NothingBetter(NamedTuple):
    """Search and rehearsal found nothing that is worth a trial."""

    now_wall_s: float
    reason: str


What = Literal["freeze", "thaw", "rollback"]


class OperatorRequest(msgspec.Struct, frozen=True):
    """What an operator asks for.

    Attributes:
        what: no more search, which ends a running trial; search again; or an earlier incumbent.
        reason: why, in the operator's words.
        number: of the `Change` to go back to.
        id: drawn for each.
    """

    what: What
    reason: str = ""
    number: int = -1
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


class OperatorAsked(NamedTuple):
    """An operator asks for something."""

    now_wall_s: float
    request: OperatorRequest


class Pinned(NamedTuple):
    """The operator's overrides, all that there are now."""

    now_wall_s: float
    pins: Mapping[str, float]


Event = Observed | Proposed | NothingBetter | OperatorAsked | Pinned


class Publish(NamedTuple):
    """Write the plan, atomically. The last one alone matters."""

    plan: Plan


class Rehearse(NamedTuple):
    """Search for a candidate and try it in the simulator; answer with `Proposed` or `NothingBetter`."""

    reason: str


class Note(NamedTuple):
    """A transition, for the log.

    Attributes:
        at_wall_s: when.
        before: phase.
        after: phase, possibly the same.
        reason: in words.
    """

    at_wall_s: float
    before: str
    after: str
    reason: str


Action = Publish | Rehearse | Note
