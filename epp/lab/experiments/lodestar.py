"""Compare Lodestar, learning from a cold start, with the heuristic that it falls back on, and with others.

Rates are near what each pool can do, found by running the heuristic at rising ones. The heuristic's constants
are the best of four pairs on loads that nothing is compared on. The paper's thresholds and pools of the
learner (5,000 samples before the first model, pools of 5,000 and 5,000) are divided by `DIVISOR`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.lab.compare.fleets import FLEETS
from epp.lab.compare.learned import LEARNERS, TRAINING_S, UNTRIED, Learning, run_learned, trained_on
from epp.lab.experiment import Experiment
from epp.lab.sim.run import run_window
from epp.lab.workloads import prefix_groups, tool_agent
from epp.lab.workloads.prefix_groups import PrefixGroups
from epp.lab.workloads.tool_agent import ToolAgent
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.lab.compare.trace import TraceRequest
    from epp.learn.reward_model.settings import LearnerSettings

SEED = 301
#: Loads of these seeds train models offline; nothing is compared on them.
OFFLINE_SEED = 1_000_000
DIVISOR, REQUESTS = 2.5, 6_000
#: Width of the windows in which recovery is looked for, how many must have settled, and how near.
BIN_S, WINDOWS, SETTLED = 30.0, 3, 1.1


@dataclass(frozen=True)
class Condition:
    """A load on a pool, and the constants of the heuristic there.

    Attributes:
        pool: name of the fleet.
        load: what is sent.
        rate_rps: the rate, the later one where it changes in the middle.
        constants: ``imbalance_requests`` and ``sigmas``.
        shifts: whether the load changes in the middle.
    """

    pool: str
    load: ToolAgent | PrefixGroups
    rate_rps: float
    constants: tuple[float, float]
    shifts: bool = False


@dataclass(frozen=True)
class Entry:
    """What runs.

    Attributes:
        policy: its name.
        params: parameters that differ from its defaults.
        model: ``online``, ``frozen`` (in the middle) or ``offline`` (from another seed's run); empty for a
            policy that does not learn.
        network: changes to the learner's network.
    """

    policy: str = "lodestar"
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str = "online"
    network: Mapping[str, Any] = field(default_factory=dict)


_CALLS, _MIXED = ToolAgent(divisor=4), (0.1, 0.3, 0.5, 0.7)
CONDITIONS: Mapping[str, Condition] = {
    "tool calls / homo": Condition("homo", _CALLS, 23.0, (16.0, 1.0)),
    "tool calls / hetero": Condition("hetero", _CALLS, 27.0, (8.0, 1.0)),
    "tool calls / l20-a30": Condition("l20-a30", _CALLS, 62.0, (16.0, 1.0)),
    "tool calls prefill only / homo": Condition("homo", replace(_CALLS, prefill_only=True), 42.0, (8.0, 1.0)),
    "sharing 50% / homo": Condition("homo", PrefixGroups(shares=(0.5,)), 4.8, (32.0, 2.0)),
    "sharing mixed / homo": Condition("homo", PrefixGroups(shares=_MIXED), 4.3, (32.0, 2.0)),
    "sharing 50% / hetero": Condition("hetero", PrefixGroups(shares=(0.5,)), 8.0, (16.0, 1.0)),
    "sharing mixed / hetero": Condition("hetero", PrefixGroups(shares=_MIXED), 7.6, (8.0, 1.0)),
    "sharing 5 to 50% / hetero": Condition(
        "hetero", PrefixGroups(shares=(0.05,), later_shares=(0.5,)), 7.2, (4.0, 1.0), shifts=True
    ),
    "tool calls 10 to 22 a second / hetero": Condition(
        "hetero", replace(_CALLS, rate_rps=10.0, later_rate_rps=22.0), 22.0, (8.0, 1.0), shifts=True
    ),
}
HEURISTIC = "prefix-cache-and-load"
ENTRIES: Mapping[str, Entry] = {
    "lodestar": Entry(),
    "lodestar-paper": Entry("lodestar-paper"),
    HEURISTIC: Entry(HEURISTIC, model=""),
    "least-request": Entry("least-request", model=""),
    "gorgo-ms": Entry("gorgo-ms", model=""),
}
ABLATIONS: Mapping[str, Entry] = {
    "no K-filter": Entry(params={"k": 0}),
    "offline only": Entry(model="offline"),
    "frozen midway": Entry(model="frozen"),
    "linear model": Entry(network={"hidden": (), "dropout": 0.0}),
}


def requests_of(condition: Condition, count: int, seed: int) -> tuple[TraceRequest, ...]:
    """Generate a load of about ``count`` requests."""
    load, rate_rps = condition.load, condition.rate_rps
    if isinstance(load, PrefixGroups):
        return prefix_groups.generate(replace(load, requests=count, rate_rps=rate_rps), seed)
    if not condition.shifts:
        load = replace(load, rate_rps=rate_rps)
    return tool_agent.generate(replace(load, duration_s=count / mean_rps(condition)), seed)


def mean_rps(condition: Condition) -> float:
    """Return the mean rate of a load."""
    return (first_rps(condition) + condition.rate_rps) / 2.0


def first_rps(condition: Condition) -> float:
    """Return the rate that a load begins with."""
    shifting = condition.shifts and isinstance(condition.load, ToolAgent)
    return condition.load.rate_rps if shifting else condition.rate_rps


def settings_of(entry: Entry) -> LearnerSettings:
    """Return the learner's settings."""
    usual = LEARNERS.get(entry.policy, UNTRIED)
    data = msgspec.structs.replace(
        usual.data,
        first=round(usual.data.first / DIVISOR),
        every=round(usual.data.every / DIVISOR),
        # Half of it is the most that a gate that lacks overlap may hold out.
        recent=round(usual.data.recent / DIVISOR * (1.5 if usual.gate.on else 1.0)),
        replay=round(usual.data.replay / DIVISOR),
    )
    # As many steps of the optimiser as over the paper's rows.
    network = msgspec.structs.replace(
        usual.network, batch=round(usual.network.batch / DIVISOR), **entry.network
    )
    # What a gate must see does not shrink with the rest, but no more is held out than a third.
    held_out = min(usual.gate.held_out, round(data.first / 3.0))
    gate = msgspec.structs.replace(usual.gate, held_out=held_out)
    return msgspec.structs.replace(usual, data=data, network=network, gate=gate)


def run(cell: str, label: str, seed: int) -> dict[str, float]:
    """Run one entry on one load: latencies from the second model on, recovery after the middle of a shift."""
    condition, entry, seed = CONDITIONS[cell], (ENTRIES.get(label) or ABLATIONS[label]), SEED + seed
    requests, fleet = requests_of(condition, REQUESTS, seed), FLEETS[condition.pool][1]
    settings, duration_s = settings_of(entry), REQUESTS / mean_rps(condition)
    # Whoever learns has the same heuristic to fall back on.
    heuristic = entry.model or entry.policy == HEURISTIC
    weights = (
        dict(zip(("imbalance_requests", "sigmas"), condition.constants, strict=True)) if heuristic else {}
    )
    first_model_s = math.nan
    if entry.model:
        policy, learning = create(entry.policy, entry.params), Learning(settings)
        assert isinstance(policy, Lodestar)  # noqa: S101  # it learns
        if entry.model == "offline":
            past = requests_of(condition, REQUESTS // 3, OFFLINE_SEED + seed)
            model = trained_on(past, fleet, policy, settings, seed=seed)
            learning = Learning(settings, freeze_at_s=0.0, model=model)
        elif entry.model == "frozen":
            learning = Learning(settings, freeze_at_s=duration_s / 2.0 - 1.0)
        result, lesson = run_learned(requests, fleet, policy, learning, weights=weights, seed=seed)
        first_model_s = lesson.first_model_s
    else:
        result = run_window(requests, fleet, create(entry.policy, entry.params), weights, seed=seed)
    due_s = np.array([request.intended_ms for request in result.requests]) / 1e3
    ttft_ms = np.array([math.nan if r.ttft_ms is None else r.ttft_ms for r in result.requests])
    second_model_s = (settings.data.first + settings.data.every) / first_rps(condition) + 2.0 * TRAINING_S
    late = due_s >= second_model_s
    shift_s = duration_s / 2.0
    return {
        "mean TTFT ms": float(np.nanmean(ttft_ms[late])),
        "TTFT p99 ms": float(np.nanpercentile(ttft_ms[late], 99)),
        "mean TTFT ms, cold start": float(np.nanmean(ttft_ms)),
        "recovered s": settled_s(due_s, ttft_ms, shift_s, duration_s) - shift_s
        if condition.shifts
        else math.nan,
        "first model s": first_model_s,
    }


def settled_s(due_s: NDArray[np.float64], ttft_ms: NDArray[np.float64], from_s: float, to_s: float) -> float:
    """Return the end of the first windows after ``from_s`` that are about as good as the last third."""
    known = ~np.isnan(ttft_ms)
    bins = (due_s[known] / BIN_S).astype(int)
    first, last = int(from_s / BIN_S), int(to_s / BIN_S)
    sums = np.bincount(bins, ttft_ms[known], last)[first:last]
    counts = np.bincount(bins, minlength=last)[first:last]
    means = np.where(counts, sums / np.maximum(counts, 1), math.nan)
    if len(means) < 2 * WINDOWS:
        return math.nan
    level = float(np.nanmean(means[-(len(means) // 3) :])) * SETTLED
    for number in range(len(means) - WINDOWS + 1):
        if float(np.nanmean(means[number : number + WINDOWS])) <= level:
            return (first + number + 1) * BIN_S
    return math.nan


EXPERIMENT = Experiment(
    question="How much sooner does Lodestar answer than its heuristic and others, and after a shift?",
    cells=tuple(CONDITIONS),
    entries=(*ENTRIES, *ABLATIONS),
    measures=("mean TTFT ms", "TTFT p99 ms", "mean TTFT ms, cold start", "recovered s", "first model s"),
    run=run,
    seeds=3,
    on_request=tuple(ABLATIONS),
)
