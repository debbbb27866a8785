"""Compare Lodestar, learning from a cold start, with the heuristic that it falls back on, and with others.

Rates are near what each pool can do, found by running the heuristic at rising ones, or the paper's where the
pool has room at these. The heuristic's constants are the best of four pairs on loads that nothing is compared
on. Requests, and all settings of the learner, are as many as the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp_lab.compare.fleets import FLEETS
from epp_lab.compare.learned import (
    LEARNERS,
    TRAINING_S,
    UNTRIED,
    Learning,
    run_learned,
    taught_by_heuristic,
)
from epp_lab.experiment import Experiment
from epp_lab.plot import Panel, figure
from epp_lab.reward_model.fitting import stack
from epp_lab.sim.fleet import ZERO_WALL_S
from epp_lab.sim.run import run_window
from epp_lab.workloads import mooncake_chat, mooncake_mix, prefix_groups, tool_agent
from epp_lab.workloads.mooncake_chat import MooncakeChat
from epp_lab.workloads.mooncake_mix import MooncakeMix
from epp_lab.workloads.prefix_groups import PrefixGroups
from epp_lab.workloads.tool_agent import ToolAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.compare.learned import Lesson
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.experiment import CellRun
    from epp_lab.reward_model.rounds import Learner
    from epp_lab.reward_model.settings import LearnerSettings

SEED = 301
#: Loads of these seeds train models offline; nothing is compared on them.
OFFLINE_SEED = 1_000_000
REQUESTS = 20_000
#: Points of each kind in the scatter.
POINTS = 150
#: Beyond any input.
_ANY = 1e12


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
    load: ToolAgent | PrefixGroups | MooncakeChat | MooncakeMix
    rate_rps: float
    constants: tuple[float, float]
    shifts: bool = False


@dataclass(frozen=True)
class Entry:
    """What runs.

    Attributes:
        policy: its name.
        model: ``online``, ``frozen`` (in the middle) or ``offline`` (from another seed's run); empty for a
            policy that does not learn.
        network: changes to the learner's network.
        data: changes to what it trains on.
        params: of the policy.
        weights: of the policy.
        trained: condition of the offline training; empty for its own.
        guarded: whether inputs beyond the training's are the heuristic's.
    """

    policy: str = "lodestar"
    model: str = "online"
    network: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    trained: str = ""
    guarded: bool = True


GENERATORS: Mapping[type, Callable[[Any, int], tuple[TraceRequest, ...]]] = {
    ToolAgent: tool_agent.generate,
    MooncakeChat: mooncake_chat.generate,
    MooncakeMix: mooncake_mix.generate,
    PrefixGroups: prefix_groups.generate,
}
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
    "conversation / hetero": Condition("hetero", MooncakeChat(divisor=4), 21.0, (4.0, 1.0)),
    "synthetic / homo": Condition("homo", MooncakeMix(divisor=4), 8.0, (32.0, 2.0)),
    "whole tool calls / l20-a30": Condition("l20-a30", ToolAgent(), 12.0, (16.0, 1.0)),
}
HEURISTIC = "prefix-cache-and-load"
ENTRIES: Mapping[str, Entry] = {
    "lodestar": Entry(),
    "lodestar-paper": Entry("lodestar-paper"),
    HEURISTIC: Entry(HEURISTIC, model=""),
    "least-request": Entry("least-request", model=""),
    "gorgo-ms": Entry("gorgo-ms", model=""),
    "lmetric": Entry("lmetric", model=""),
    "mooncake": Entry("mooncake", model=""),
    "mooncake-static": Entry("mooncake-static", model=""),
    **{
        f"prefix-threshold {percent} %": Entry(
            "prefix-threshold", model="", weights={"threshold": percent / 100.0}
        )
        for percent in (20, 40, 60, 80)
    },
}
ABLATIONS: Mapping[str, Entry] = {
    "offline only": Entry(model="offline"),
    "offline from 7 A30": Entry(model="offline", trained="tool calls / homo"),
    # The paper's, whose script does not check for strange inputs; classes have too few rows to be inputs.
    "unguarded from 7 A30": Entry(
        "lodestar-paper",
        model="offline",
        network={"min_class_rows": 10**9},
        trained="tool calls / homo",
        guarded=False,
    ),
    "frozen midway": Entry(model="frozen"),
    # Source [L]'s own: a cache that is never full asks every endpoint; older samples are forgotten.
    "no K-filter": Entry(params={"kv_saturated": 1.0}),
    "linear model": Entry(network={"hidden": ()}),
    "new samples alone": Entry(data={"replay": 0}),
    "all samples": Entry(data={"recent": 20_000}),
}
#: What is held against what came: kinds of predictions.
KINDS = ("held out", "deployed")
MEASURES = (
    "mean TTFT ms",
    "TTFT p99 ms",
    "mean TTFT ms, all",
    "first model s",
    "model's share",
    "out of distribution",
    *(f"{measure}, {kind}" for measure in ("predicted / measured", "error") for kind in KINDS),
)


def requests_of(condition: Condition, count: int, seed: int) -> tuple[TraceRequest, ...]:
    """Generate a load of about ``count`` requests."""
    load, changes = condition.load, dict[str, float]()
    if isinstance(load, PrefixGroups):
        changes["requests"] = count
    else:
        changes["duration_s"] = count / mean_rps(condition)
    if first_rps(condition) == condition.rate_rps:
        changes["rate_rps"] = condition.rate_rps
    return GENERATORS[type(load)](replace(load, **changes), seed)  # type: ignore[arg-type]  # of each


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
    network = msgspec.structs.replace(usual.network, **entry.network)
    data = msgspec.structs.replace(usual.data, **entry.data)
    return msgspec.structs.replace(usual, network=network, data=data)


def run(cell: str, label: str, seed: int) -> dict[str, float]:
    """Run one entry on one load: latencies from the second model or the shift on, and how it learned."""
    condition, entry, seed = CONDITIONS[cell], (ENTRIES.get(label) or ABLATIONS[label]), SEED + seed
    requests, fleet = requests_of(condition, REQUESTS, seed), FLEETS[condition.pool][1]
    settings, shift_s = settings_of(entry), REQUESTS / mean_rps(condition) / 2.0
    weights: Mapping[str, float] = entry.weights
    if entry.model or entry.policy == HEURISTIC:  # whoever learns has the same heuristic to fall back on
        weights = _constants(condition)
    from_s = shift_s
    if not condition.shifts:
        from_s = (settings.data.first + settings.data.every) / condition.rate_rps + 2.0 * TRAINING_S
    figures = dict.fromkeys(MEASURES, math.nan)
    lesson: Lesson | None = None
    if entry.model:
        policy, learning = create(entry.policy, entry.params), Learning(settings)
        assert isinstance(policy, Lodestar)  # noqa: S101  # it learns
        if entry.model == "offline":
            learning, points = _offline(condition, entry, policy, settings, seed)
            figures |= _errors("held out", points)
        elif entry.model == "frozen":
            learning = Learning(settings, freeze_at_s=shift_s - 1.0)
        result, lesson = run_learned(requests, fleet, policy, learning, weights=weights, seed=seed)
        figures["first model s"] = lesson.first_model_s
        figures["model's share"] = lesson.share("model")
        figures["out of distribution"] = lesson.share("out-of-distribution")
        if label in ABLATIONS and learning.model is None and not lesson.first_model_s < shift_s:
            return figures  # no model decided before the shift, or the freeze: there is nothing to compare
    else:
        result = run_window(requests, fleet, create(entry.policy), weights, seed=seed)
    due_s = np.array([request.intended_ms for request in result.requests]) / 1e3
    ttft_ms = np.array([math.nan if r.ttft_ms is None else r.ttft_ms for r in result.requests])
    late = due_s >= from_s
    if lesson is not None and len(lesson.chosen) == len(ttft_ms):  # all sent, in the order of decisions
        _, codes, predicted_ms = np.array(lesson.chosen).T
        known = late & (codes == 0.0) & ~np.isnan(predicted_ms) & ~np.isnan(ttft_ms)
        figures |= _errors("deployed", list(zip(predicted_ms[known], ttft_ms[known], strict=True)))
    return figures | {
        "mean TTFT ms": float(np.nanmean(ttft_ms[late])),
        "TTFT p99 ms": float(np.nanpercentile(ttft_ms[late], 99)),
        "mean TTFT ms, all": float(np.nanmean(ttft_ms)),
    }


def _offline(
    condition: Condition, entry: Entry, policy: Lodestar, settings: LearnerSettings, seed: int
) -> tuple[Learning, list[tuple[float, float]]]:
    """Train on a run that the heuristic served, and predict another one: predicted and measured."""
    past = CONDITIONS[entry.trained] if entry.trained else condition
    fleet, weights = FLEETS[past.pool][1], _constants(past)

    def taught(count: int, draw: int) -> Learner:
        load = requests_of(past, count, draw + seed)
        return taught_by_heuristic(load, fleet, policy, settings, weights=weights, seed=seed)

    model = taught(REQUESTS // 3, OFFLINE_SEED).train(ZERO_WALL_S)
    if model is None:
        return Learning(settings, freeze_at_s=0.0), []
    seen = [sample for sample in taught(REQUESTS // 20, 2 * OFFLINE_SEED).memory.recent if sample.answered]
    predicted_ms = model.predict(stack(seen, model.classes))[:, 0].tolist()
    points = [(value, sample.ttft_ms) for value, sample in zip(predicted_ms, seen, strict=True)]
    if not entry.guarded:
        model = replace(model, low=np.full_like(model.low, -_ANY), high=np.full_like(model.high, _ANY))
    return Learning(settings, freeze_at_s=0.0, model=model), points


def _constants(condition: Condition) -> Mapping[str, float]:
    return dict(zip(("imbalance_requests", "sigmas"), condition.constants, strict=True))


def _errors(kind: str, points: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Compare predictions with what came, in the mean and one by one; some points, for the scatter."""
    if not points:
        return {}
    predicted, measured = np.array(points).T
    figures = {
        f"predicted / measured, {kind}": float(predicted.mean() / measured.mean()),
        f"error, {kind}": float(np.abs(predicted - measured).mean() / measured.mean()),
    }
    for number, (x, y) in enumerate(points[:: -(-len(points) // POINTS)]):
        figures |= {f"{kind} {number} measured": float(y), f"{kind} {number} predicted": float(x)}
    return figures


def plots(runs: Sequence[CellRun]) -> list[str]:
    """Plot what models learned offline predicted against what came, as in Figure 3a of source [L]."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in runs:
        if f"{KINDS[0]} 0 measured" not in run.figures:
            continue
        series = panels.setdefault(f"{run.entry}: {run.cell}", {kind: [] for kind in KINDS})
        for kind in KINDS:
            names = (f"{kind} {number}" for number in range(POINTS))
            pairs = [(run.value(f"{name} measured"), run.value(f"{name} predicted")) for name in names]
            series[kind] += [pair for pair in pairs if not math.isnan(pair[0])]
    shown = [
        Panel(title, "measured ms", "predicted ms", series, drawn="points")
        for title, series in panels.items()
    ]
    title = "TTFT as predicted by models learned offline"
    return [figure(title, shown)] if shown else []


EXPERIMENT = Experiment(
    question="How much sooner does Lodestar answer than its heuristic and others, and after a shift?",
    cells=CONDITIONS,
    entries=(*ENTRIES, *ABLATIONS),
    measures=MEASURES,
    run=run,
    minutes=143,
    seeds=3,
    on_request=tuple(ABLATIONS),
    plots=plots,
)
