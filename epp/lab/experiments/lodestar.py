"""Compare Lodestar, learning from a cold start, with the heuristic that it falls back on, and with others.

Rates are near what each pool can do, found by running the heuristic at rising ones. The heuristic's constants
are those of ``lodestar_weights.json``, the best of four pairs on loads that nothing is compared on. The usual
size divides the learner's thresholds and pools by 2.5 and has shorter loads; cells that end in ``full size``
have the paper's (5,000 samples before the first model, pools of 5,000 and 5,000).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.lab.compare.fleets import FLEETS
from epp.lab.compare.learned import TRAINING_S, UNTRIED, Learning, Lesson, run_learned, trained_on
from epp.lab.experiment import Experiment
from epp.lab.sim.run import run_window
from epp.lab.workloads import prefix_groups, tool_agent
from epp.lab.workloads.prefix_groups import PrefixGroups
from epp.lab.workloads.tool_agent import ToolAgent
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from epp.lab.compare.trace import TraceRequest
    from epp.lab.sim.results import WindowResult
    from epp.learn.reward_model.settings import LearnerSettings

SEED = 301
#: Loads of these seeds train models offline; nothing is compared on them.
OFFLINE_SEED = 1_000_000
FULL = " full size"
#: Width of the windows in which recovery is looked for, how many must have settled, and how near.
BIN_S, WINDOWS, SETTLED = 30.0, 3, 1.1


@dataclass(frozen=True, slots=True)
class Size:
    """What the learner's thresholds are divided by, and requests of a steady load and of one that shifts."""

    divisor: float
    requests: int
    shifted: int


USUAL_SIZE, FULL_SIZE = Size(2.5, 5_000, 7_000), Size(1.0, 15_000, 20_000)


@dataclass(frozen=True, slots=True)
class Condition:
    """A load on a pool, at a rate that is the later one where the load shifts in the middle."""

    pool: str
    load: ToolAgent | PrefixGroups
    rate_rps: float
    shifts: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What runs.

    Attributes:
        policy: its name.
        params: parameters that differ from its defaults.
        model: ``online``, ``frozen`` (until the middle) or ``offline`` (from another seed's run); empty for a
            policy that does not learn.
        changes: to a section of the learner's settings, or to the settings themselves under ``""``.
    """

    policy: str = "lodestar"
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str = "online"
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_CALLS, _MIXED = ToolAgent(divisor=4), (0.1, 0.3, 0.5, 0.7)
_PREFILL = replace(_CALLS, prefill_only=True)
CONDITIONS: Mapping[str, Condition] = {
    "tool calls / homo": Condition("homo", _CALLS, 23.0),
    "tool calls / hetero": Condition("hetero", _CALLS, 27.0),
    "tool calls / l20-a30": Condition("l20-a30", _CALLS, 62.0),
    "tool calls prefill only / homo": Condition("homo", _PREFILL, 42.0),
    "tool calls prefill only / hetero": Condition("hetero", _PREFILL, 48.0),
    "sharing 10% / homo": Condition("homo", PrefixGroups(shares=(0.1,)), 3.8),
    "sharing 30% / homo": Condition("homo", PrefixGroups(shares=(0.3,)), 4.2),
    "sharing 50% / homo": Condition("homo", PrefixGroups(shares=(0.5,)), 4.8),
    "sharing 70% / homo": Condition("homo", PrefixGroups(shares=(0.7,)), 5.8),
    "sharing mixed / homo": Condition("homo", PrefixGroups(shares=_MIXED), 4.3),
    "sharing 10% / hetero": Condition("hetero", PrefixGroups(shares=(0.1,)), 7.0),
    "sharing 30% / hetero": Condition("hetero", PrefixGroups(shares=(0.3,)), 7.4),
    "sharing 50% / hetero": Condition("hetero", PrefixGroups(shares=(0.5,)), 8.0),
    "sharing 70% / hetero": Condition("hetero", PrefixGroups(shares=(0.7,)), 9.0),
    "sharing mixed / hetero": Condition("hetero", PrefixGroups(shares=_MIXED), 7.6),
    "sharing mixed / l20-a30": Condition("l20-a30", PrefixGroups(shares=_MIXED), 12.0),
    "sharing mixed prefill only / homo": Condition(
        "homo", PrefixGroups(shares=_MIXED, prefill_only=True), 6.5
    ),
    "sharing 5 to 50% / hetero": Condition(
        "hetero", PrefixGroups(shares=(0.05,), later_shares=(0.5,)), 7.2, shifts=True
    ),
    "tool calls 10 to 22 a second / hetero": Condition(
        "hetero", replace(_CALLS, rate_rps=10.0, later_rate_rps=22.0), 22.0, shifts=True
    ),
}
_USUAL = (
    *("tool calls / homo", "tool calls / hetero", "tool calls / l20-a30", "tool calls prefill only / homo"),
    *("sharing 50% / homo", "sharing mixed / homo", "sharing 50% / hetero", "sharing 5 to 50% / hetero"),
    "tool calls 10 to 22 a second / hetero",
)
HEURISTIC = "prefix-cache-and-load"
ENTRIES: Mapping[str, Entry] = {
    "lodestar": Entry(),
    HEURISTIC: Entry(HEURISTIC, model=""),
    f"{HEURISTIC} engine counts": Entry(HEURISTIC, {"counts": "engine"}, model=""),
    "least-request": Entry("least-request", model=""),
    "gorgo-ms": Entry("gorgo-ms", model=""),
}
ABLATIONS: Mapping[str, Entry] = {
    "no K-filter": Entry(params={"k": 0}),
    "best for each alone": Entry(changes={"": {"congestion_price": 0.0}}),
    "offline only": Entry(model="offline"),
    "frozen midway": Entry(model="frozen"),
    "linear model": Entry(changes={"network": {"hidden": (), "dropout": 0.0}}),
    "new samples only": Entry(changes={"data": {"replay": 0}}),
    "all samples": Entry(changes={"data": {"recent": 1_000_000, "replay": 0}}),
    "without gate": Entry(changes={"gate": {"on": False}}),
}


@cache
def _weights() -> Mapping[str, Mapping[str, Sequence[float]]]:
    found: dict[str, dict[str, list[float]]] = json.loads(
        Path(__file__).with_name("lodestar_weights.json").read_text(encoding="utf-8")
    )
    return found


def requests_of(condition: Condition, count: int, seed: int) -> tuple[TraceRequest, ...]:
    """Generate a load of about so many requests."""
    load, rate_rps = condition.load, condition.rate_rps
    if isinstance(load, PrefixGroups):
        return prefix_groups.generate(replace(load, requests=count, rate_rps=rate_rps), seed)
    if not condition.shifts:
        load = replace(load, rate_rps=rate_rps)
    return tool_agent.generate(replace(load, duration_s=count / mean_rps(condition)), seed)


def mean_rps(condition: Condition) -> float:
    """Return the mean rate of a load."""
    load = condition.load
    two_rates = isinstance(load, ToolAgent) and load.later_rate_rps is not None
    return (load.rate_rps + condition.rate_rps) / 2.0 if two_rates else condition.rate_rps


def learned_s(condition: Condition, size: Size) -> float:
    """Return from when on a learner is judged: a round after its first."""
    data, load = settings_of(Entry(), size).data, condition.load
    shifting = isinstance(load, ToolAgent) and condition.shifts
    first_rps = load.rate_rps if shifting else condition.rate_rps
    return (data.first + data.every) / first_rps + 2.0 * TRAINING_S


def settings_of(entry: Entry, size: Size) -> LearnerSettings:
    """Return the learner's settings at a size."""
    usual, divisor = UNTRIED, size.divisor
    data = msgspec.structs.replace(
        usual.data,
        first=round(usual.data.first / divisor),
        every=round(usual.data.every / divisor),
        # Half of it is the most that a gate that lacks overlap may hold out.
        recent=round(usual.data.recent / divisor * (1.0 if size is FULL_SIZE else 1.5)),
        replay=round(usual.data.replay / divisor),
    )
    settings = msgspec.structs.replace(
        usual,
        data=data,
        # As many steps of the optimiser as over the paper's rows.
        network=msgspec.structs.replace(usual.network, batch=round(usual.network.batch / divisor)),
        # What a gate must see does not shrink with the rest, but no more is held out than a third.
        gate=msgspec.structs.replace(usual.gate, held_out=min(usual.gate.held_out, round(data.first / 3.0))),
    )
    for section, values in entry.changes.items():
        changed = dict(values)
        if section:
            changed = {section: msgspec.structs.replace(getattr(settings, section), **values)}
        settings = msgspec.structs.replace(settings, **changed)
    return settings


def run(cell: str, label: str, seed: int) -> dict[str, float]:
    """Run one entry on one load."""
    name = cell.removesuffix(FULL)
    size = USUAL_SIZE if name == cell else FULL_SIZE
    condition, entry, seed = CONDITIONS[name], (ENTRIES.get(label) or ABLATIONS[label]), SEED + seed
    count = size.shifted if condition.shifts else size.requests
    requests, fleet = requests_of(condition, count, seed), FLEETS[condition.pool][1]
    constants: dict[str, float] = {}
    if entry.model or entry.policy == HEURISTIC:  # whoever learns has the same heuristic to fall back on
        own = label if label in _weights()[name] else HEURISTIC
        constants = dict(zip(("imbalance_requests", "sigmas"), _weights()[name][own], strict=True))
    lesson = None
    settings = settings_of(entry, size)
    duration_s = count / mean_rps(condition)
    if entry.model:
        policy = Lodestar(**entry.params)
        learning = Learning(settings)
        if entry.model == "offline":
            past = requests_of(condition, min(count, size.requests) // 3, OFFLINE_SEED + seed)
            model = trained_on(past, fleet, policy, settings, seed=seed)
            learning = Learning(settings, freeze_at_s=0.0, model=model)
        elif entry.model == "frozen":
            learning = Learning(settings, freeze_at_s=duration_s / 2.0 - 1.0)
        result, lesson = run_learned(requests, fleet, policy, learning, weights=constants, seed=seed)
    else:
        result = run_window(requests, fleet, create(entry.policy, entry.params), constants, seed=seed)
    return _figures(result, lesson, learned_s(condition, size), duration_s if condition.shifts else 0.0)


def _figures(
    result: WindowResult, lesson: Lesson | None, from_s: float, shifting_s: float
) -> dict[str, float]:
    """Sum up a run: latencies from ``from_s`` on; recovery from the middle of a run that shifts there."""
    due_s = np.array([request.intended_ms for request in result.requests]) / 1e3
    ttft_ms = np.array([math.nan if r.ttft_ms is None else r.ttft_ms for r in result.requests])
    late = due_s >= from_s
    figures = {
        "mean TTFT ms": float(np.nanmean(ttft_ms[late])),
        "TTFT p99 ms": float(np.nanpercentile(ttft_ms[late], 99)),
        "mean TTFT ms, cold start": float(np.nanmean(ttft_ms)),
        "recovered s": math.nan,
        "first model s": math.nan if lesson is None else lesson.first_model_s,
        "failed": float(sum(not request.ok for request in result.requests)),
    }
    if shifting_s:
        shift_s = shifting_s / 2.0
        figures["recovered s"] = settled_s(due_s, ttft_ms, shift_s, shifting_s) - shift_s
    return figures


def settled_s(due_s: NDArray[np.float64], ttft_ms: NDArray[np.float64], from_s: float, to_s: float) -> float:
    """Return the end of the first windows after ``from_s`` that are about as good as the last third."""
    known = ~np.isnan(ttft_ms)
    places = (due_s[known] / BIN_S).astype(int)
    first, last = int(from_s / BIN_S), int(to_s / BIN_S)
    sums = np.bincount(places, ttft_ms[known], last)[first:last]
    counts = np.bincount(places, minlength=last)[first:last]
    if len(sums) < 2 * WINDOWS:
        return math.nan
    means = np.where(counts, sums / np.maximum(counts, 1), math.nan)
    level = float(np.nanmean(means[-(len(means) // 3) :])) * SETTLED
    for number in range(len(means) - WINDOWS + 1):
        if float(np.nanmean(means[number : number + WINDOWS])) <= level:
            return (first + number + 1) * BIN_S
    return math.nan


EXPERIMENT = Experiment(
    name="lodestar",
    question="How much sooner does Lodestar answer than its heuristic and others, and after a shift?",
    cells=(
        *_USUAL,
        *(name for name in CONDITIONS if name not in _USUAL),
        *(name + FULL for name in CONDITIONS),
    ),
    entries=(*ENTRIES, *ABLATIONS),
    measures=("mean TTFT ms", "TTFT p99 ms", "mean TTFT ms, cold start", "recovered s", "first model s"),
    run=run,
    seeds=3,
    on_request=(
        *(name for name in CONDITIONS if name not in _USUAL),
        *(name + FULL for name in CONDITIONS),
        *ABLATIONS,
    ),
)
