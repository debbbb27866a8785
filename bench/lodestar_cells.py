"""What Lodestar is measured on: cells, who runs there, how large a learner is.

Owns the table. Rates are near what each pool can do, found by running the heuristic at rising ones. Two
sizes: the short one divides the learner's thresholds and pools, and the loads, by 2.5, so that it fits into
minutes; the full one has the paper's (5,000 samples before the first model, pools of 5,000 and 5,000). Long
cells last as long as a trial does: in the full size, with the settings of a deployment, hours; in the short
one, with a trial that can end within an hour (`_QUICK`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from epp.learner.settings import Guard
from epp.replay.learned import TRAINING_S, UNTRIED
from epp.replay.workloads import prefix_groups, tool_agent
from epp.replay.workloads.prefix_groups import PrefixGroups
from epp.replay.workloads.tool_agent import ToolAgent
from epp.tuner.settings import Evidence, Goal, Stages, TunerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learner.settings import LearnerSettings
    from epp.replay.trace import TraceRequest

#: Loads that constants are tuned on; never judged on.
TUNING_SEED = 1_000_000
SEEDS = tuple(range(301, 321))
#: Constants of the heuristic that are tried: largest spread of request counts, and standard deviations.
GRID = ((8.0, 1.0), (4.0, 1.0), (16.0, 1.0), (32.0, 2.0))
_MIXED = (0.1, 0.3, 0.5, 0.7)


@dataclass(frozen=True, slots=True)
class Size:
    """How large everything is.

    Attributes:
        name: ``short`` or ``full``.
        settings: the learner's.
        requests: of a steady cell.
        shifted: of a cell that shifts in the middle.
        long_s: how long a cell lasts in which the learned policy is tried.
    """

    name: str
    settings: LearnerSettings
    requests: int
    shifted: int
    long_s: float


#: A trial that can come to an end within an hour: wider margins, because a narrow one takes many pairs of
#: blocks to be shown, and shorter stages before the fleet as a whole is switched. Blocks are the usual ones.
_QUICK = TunerSettings(
    goal=Goal(e2e_margin=0.03, error_margin=0.03, concentration_margin=0.3),
    evidence=Evidence(min_pairs=12, max_pairs=80),
    stages=Stages(
        baseline_requests=500,
        baseline_s=60.0,
        screen_share=0.2,
        ramp_shares=(0.5,),
        stage_requests=50,
        stage_s=45.0,
        max_block_s=45.0,
        probation_pairs=12,
        probation_every=2,
    ),
)


def _settings(scale: float, trial: TunerSettings) -> LearnerSettings:
    usual = UNTRIED
    data, gate, network = usual.data, usual.gate, usual.network
    return msgspec.structs.replace(
        usual,
        data=msgspec.structs.replace(
            data,
            first=round(data.first / scale),
            every=round(data.every / scale),
            # Half of it is the most that a gate that lacks overlap may hold out.
            recent=round(data.recent / scale * (1.0 if scale == 1.0 else 1.5)),
            replay=round(data.replay / scale),
        ),
        # As many steps of the optimiser as over the paper's rows.
        network=msgspec.structs.replace(network, batch=round(network.batch / scale)),
        # What a gate must see does not shrink with the rest, but no more is held out than a third.
        gate=msgspec.structs.replace(gate, held_out=min(gate.held_out, round(data.first / scale / 3.0))),
        trial=trial,
    )


SHORT = Size("short", _settings(2.5, _QUICK), 5_000, 7_000, 3_000.0)
FULL = Size("full", _settings(1.0, TunerSettings()), 15_000, 20_000, 36_000.0)
#: For a smoke test: nothing that it says means anything.
SMOKE = Size("smoke", _settings(10.0, _QUICK), 1_500, 1_500, 200.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """A load on a pool.

    Attributes:
        name: ``load / pool``.
        pool: name of a fleet.
        load: parameters without numbers of requests.
        rate_rps: mean rate, of the second half where it shifts.
        shifts: in the middle.
        core: part of the short run.
        long: lasts as long as a trial.
    """

    name: str
    pool: str
    load: ToolAgent | PrefixGroups
    rate_rps: float
    shifts: bool = False
    core: bool = True
    long: bool = False

    def requests(self, size: Size, seed: int, *, tuning: bool = False) -> tuple[TraceRequest, ...]:
        """The load for a seed; for tuning a part of it."""
        count = self._count(size)
        count = min(count, size.requests) // 3 if tuning else count
        if isinstance(self.load, PrefixGroups):
            groups = replace(self.load, requests=count, rate_rps=self.rate_rps)
            return prefix_groups.generate(groups, seed)
        calls = replace(self.load, duration_s=count / self._mean_rps)
        if not self.shifts:
            calls = replace(calls, rate_rps=self.rate_rps)
        return tool_agent.generate(calls, seed)

    def lasts_s(self, size: Size) -> float:
        """How long it is sent, about."""
        return self._count(size) / self._mean_rps

    def _count(self, size: Size) -> int:
        if self.long:
            return round(size.long_s * self.rate_rps)
        return size.shifted if self.shifts else size.requests

    def learned_s(self, size: Size) -> float:
        """From when on a learner is judged: a round after the first."""
        data = size.settings.data
        rate = self.load.rate_rps if self._two_rates else self.rate_rps
        return (data.first + data.every) / rate + 2.0 * TRAINING_S

    @property
    def _two_rates(self) -> bool:
        return isinstance(self.load, ToolAgent) and self.load.later_rate_rps is not None

    @property
    def _mean_rps(self) -> float:
        return (self.load.rate_rps + self.rate_rps) / 2.0 if self._two_rates else self.rate_rps


_CALLS = ToolAgent(divisor=4)


def _steady() -> list[Cell]:
    prefill = replace(_CALLS, prefill_only=True)
    cells = [
        Cell("tool calls / homo", "homo", _CALLS, 23.0),
        Cell("tool calls / hetero", "hetero", _CALLS, 27.0),
        Cell("tool calls / l20-a30", "l20-a30", _CALLS, 62.0),
        Cell("tool calls, prefill only / homo", "homo", prefill, 42.0),
        Cell("tool calls, prefill only / hetero", "hetero", prefill, 48.0, core=False),
    ]
    for pool, rates in (("homo", (3.8, 4.2, 4.8, 5.8, 4.3)), ("hetero", (7.0, 7.4, 8.0, 9.0, 7.6))):
        for share, rate in zip((*_MIXED, 0.0), rates, strict=True):
            name = f"sharing {share:.0%}" if share else "sharing mixed"
            load = PrefixGroups(shares=(share,) if share else _MIXED)
            core = (pool, share) in {("hetero", 0.5), ("homo", 0.5), ("homo", 0.0)}
            cells.append(Cell(f"{name} / {pool}", pool, load, rate, core=core))
    mixed, half = PrefixGroups(shares=_MIXED), PrefixGroups(shares=(0.5,))
    return [
        *cells,
        Cell("sharing mixed / l20-a30", "l20-a30", mixed, 12.0, core=False),
        Cell(
            "sharing mixed, prefill only / homo", "homo", replace(mixed, prefill_only=True), 6.5, core=False
        ),
        Cell("sharing 50%, long / homo", "homo", half, 4.8, long=True),
        Cell("sharing 50%, long / hetero", "hetero", half, 8.0, long=True),
    ]


CELLS = (
    *_steady(),
    Cell(
        "sharing 5 to 50 % / hetero",
        "hetero",
        PrefixGroups(shares=(0.05,), later_shares=(0.5,)),
        7.2,
        shifts=True,
    ),
    Cell(
        "tool calls 10 to 22 a second / hetero",
        "hetero",
        replace(_CALLS, rate_rps=10.0, later_rate_rps=22.0),
        22.0,
        shifts=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Who runs.

    Attributes:
        label: in the tables.
        policy: its name.
        params: parameters that differ from its defaults.
        learns: ``online``, ``tried`` (and promoted by a trial alone), ``frozen`` (until the middle),
            ``offline`` (from another seed's run) or empty.
        changes: to the learner's settings: section -> field -> value; ``""`` for those without a section.
        tuned: with constants that were tuned for the cell.
        shifts_only: runs only where the load shifts.
        sharing_only: runs only where prompts are long enough to fill the caches, and nothing shifts.
        core: part of the short run.
    """

    label: str
    policy: str = "lodestar"
    params: Mapping[str, object] = field(default_factory=dict)
    learns: str = "online"
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: bool = False
    shifts_only: bool = False
    sharing_only: bool = False
    core: bool = True

    def runs_on(self, cell: Cell) -> bool:
        """Whether it has a place there."""
        if cell.long:
            return self.label in (LODESTAR, HEURISTIC) or self.learns == "tried"
        if self.sharing_only:
            return isinstance(cell.load, PrefixGroups) and not cell.shifts
        return self.learns != "tried" and not (self.shifts_only and not cell.shifts)

    def settings(self, size: Size, cell: Cell) -> LearnerSettings:
        """The learner's settings, changed.

        In a long cell rounds are as rare as the paper's, and the heuristic has its turns; in a short one such
        a turn could be all that is judged.
        """
        settings = size.settings
        if cell.long:
            every = FULL.settings.data.every
            settings = msgspec.structs.replace(
                settings, data=msgspec.structs.replace(settings.data, every=every), guard=Guard()
            )
        for section, values in self.changes.items():
            if section:
                changed = msgspec.structs.replace(getattr(settings, section), **values)
                settings = msgspec.structs.replace(settings, **{section: changed})
            else:
                settings = msgspec.structs.replace(settings, **values)
        return settings


HEURISTIC = "prefix-cache-and-load"
LODESTAR = "lodestar"
TRIED = "lodestar, on trial"
ENTRIES = (
    Entry(LODESTAR),
    Entry(HEURISTIC, HEURISTIC, learns="", tuned=True),
    Entry(f"{HEURISTIC}, engine counts", HEURISTIC, {"counts": "engine"}, learns="", tuned=True),
    Entry("least-request", "least-request", learns=""),
    Entry("gorgo-ms", "gorgo-ms", learns=""),
    Entry(TRIED, learns="tried"),
    Entry("no K-filter", params={"k": 0}, sharing_only=True),
    Entry("best for each alone", changes={"": {"congestion_price": 0.0}}, sharing_only=True),
    Entry("offline only", learns="offline", shifts_only=True),
    Entry("frozen midway", learns="frozen", shifts_only=True),
    Entry("linear model", changes={"network": {"hidden": (), "dropout": 0.0}}, shifts_only=True),
    Entry("new samples only", changes={"data": {"replay": 0}}, shifts_only=True),
    Entry("all samples", changes={"data": {"recent": 1_000_000, "replay": 0}}, shifts_only=True),
    Entry("without gate", changes={"gate": {"on": False}}, core=False),
)
