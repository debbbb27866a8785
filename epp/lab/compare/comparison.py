"""Running a comparison: tune, run every policy on every load, compare, conclude.

Owns the order of the work. What comes out is a `epp.lab.compare.document.Document`, the same for any number
of
workers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from epp.errors import EppError
from epp.lab.compare.cells import shaped
from epp.lab.compare.console import conclusion, lesson_sentence
from epp.lab.compare.document import (
    SCHEMA,
    CellEntry,
    Document,
    compare_policies,
    policy_entry,
    sweep_entry,
)
from epp.lab.compare.plan import Shape
from epp.lab.compare.simulate import Outcome, PolicyChoice, Task, run_all, run_task
from epp.lab.compare.trace_stats import describe
from epp.lab.compare.tune import TuningTask, tunable, tune
from epp.lab.sim.oracle import ORACLES
from epp.lab.workloads import shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.lab.compare.plan import Cell
    from epp.lab.compare.tune import Tuned
    from epp.lab.sim.scenario import FleetSpec

    #: Called with what is going on, how much of it is done, and how much there is.
    Step = Callable[[str, int, int], None]

_RESAMPLING_SEED = 20_260_401
SWEEP_STEPS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared.

    Attributes:
        fleet: the replicas.
        policies: in the order of the report.
        candidate: name of the one that is judged.
        seeds: of the loads; the unit of evidence unless ``by_request``.
        margin: of non-inferiority, e.g. 0.05.
        tune_budget: weights tried for each tunable policy, 0 for none.
        workers: processes.
        by_request: the evidence is within one trace, not over seeds.
    """

    fleet: FleetSpec
    policies: tuple[PolicyChoice, ...]
    candidate: str
    seeds: tuple[int, ...]
    margin: float = 0.05
    tune_budget: int = 0
    workers: int = 1
    by_request: bool = False


class Comparer:
    """Runs a plan; ``step`` hears of progress."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self._plan, self._step = plan, step

    def document(self, cells: Sequence[Cell], *, sweep: bool = False) -> Document:
        """Run all cells."""
        plan = self._plan
        tuned = self._tuned(cells[:1] if sweep else cells)
        # All cells' tasks in one queue: workers are never idle between cells.
        tasks, choices = [], []
        for number, cell in enumerate(cells):
            found = tuned.get(0 if sweep else number, {})
            chosen = [_with_tuned(policy, found) for policy in plan.policies]
            choices.append(chosen)
            tasks += [
                Task(cell, plan.fleet, policy, seed, columns=plan.by_request)
                for seed in plan.seeds
                for policy in chosen
            ]
        title = f"{len(plan.policies)} policies x {len(plan.seeds)} seeds x {len(cells)} loads"
        self._step(title, 0, len(tasks))
        outcomes = run_all(
            run_task,
            tasks,
            workers=plan.workers,
            on_done=lambda done: self._step(title, done, len(tasks)),
        )
        entries = []
        per_cell = len(tasks) // len(cells)
        for number, cell in enumerate(cells):
            part = outcomes[number * per_cell : (number + 1) * per_cell]
            found = tuned.get(0 if sweep else number, {})
            entries.append(self._entry(cell, choices[number], part, list(found.values())))
        return Document(
            schema=SCHEMA,
            fleet=fleet_rows(plan.fleet),
            seeds=list(plan.seeds),
            candidate=plan.candidate,
            margin=plan.margin,
            cells=entries,
            sweep=sweep_entry(entries) if sweep else None,
        )

    def guidellm_sweep(self, cell: Cell, text: str) -> list[Cell]:
        """Cells of GuideLLM's sweep: one request at a time, everything at once, and rates between.

        The ends are measured with the candidate under the first seed.

        Raises:
            EppError: the steps are not a number of at least 2.
        """
        plan = self._plan
        _, _, steps_text = text.partition(":")
        if steps_text and not (steps_text.isdecimal() and int(steps_text) >= 2):
            raise EppError(f"--shape {text}: give a number of steps, at least 2: sweep:8")
        ends = [shaped(cell, Shape("concurrent", 1.0)), shaped(cell, Shape("throughput"))]
        candidate = next(policy for policy in plan.policies if policy.name == plan.candidate)
        tasks = [
            Task(replace(end, warmup_s=0.0), plan.fleet, candidate, plan.seeds[0], columns=True)
            for end in ends
        ]
        low, high = (_answered_per_s(task, run_task(task)) for task in tasks)
        rates = shapes.sweep(low, high, int(steps_text or SWEEP_STEPS))
        return [shaped(cell, Shape("poisson", rate)) for rate in rates]

    def _tuned(self, cells: Sequence[Cell]) -> dict[int, dict[str, Tuned]]:
        plan = self._plan
        names = [policy for policy in plan.policies if tunable(policy.name)]
        if not plan.tune_budget or not names:
            return {}
        tasks = [TuningTask(cell, plan.fleet, policy, plan.tune_budget) for cell in cells for policy in names]
        title = f"tuning {len(names)} policies, {plan.tune_budget} weights each"
        found = run_all(
            tune, tasks, workers=plan.workers, on_done=lambda done: self._step(title, done, len(tasks))
        )
        return {
            number: {t.policy: t for t in found[number * len(names) : (number + 1) * len(names)]}
            for number in range(len(cells))
        }

    def _entry(
        self,
        cell: Cell,
        policies: Sequence[PolicyChoice],
        outcomes: Sequence[Outcome],
        tuned: Sequence[Tuned],
    ) -> CellEntry:
        """Outcomes come seed by seed, in the order of the policies."""
        plan, k = self._plan, len(policies)
        by_policy = {policy.name: outcomes[i::k] for i, policy in enumerate(policies)}
        weights = {policy.name: policy.weights for policy in policies}
        requests = cell.source.requests(plan.seeds[0])
        load: dict[str, Any] = asdict(describe(requests)) | {
            "time_scale": cell.time_scale,
            "load": cell.load,
            "max_in_flight": cell.max_in_flight,
            "closed_loop": any(r.after is not None for r in requests) and cell.closed_loop,
            "input_tokens_per_s": _offered(outcomes),
        }
        return cell_entry(
            cell.name,
            load,
            by_policy,
            weights,
            warmup_s=cell.warmup(requests),
            candidate=plan.candidate,
            margin=plan.margin,
            by_request=plan.by_request,
            tuning=[_tuning_row(t) for t in tuned],
        )


def cell_entry(
    name: str,
    load: dict[str, Any],
    outcomes: Mapping[str, Sequence[Outcome]],
    weights: Mapping[str, Mapping[str, float]],
    *,
    warmup_s: float,
    candidate: str,
    margin: float,
    by_request: bool,
    tuning: list[dict[str, Any]],
) -> CellEntry:
    """The section of one load from the outcomes of its policies."""
    roles = {name: role_of(name, candidate) for name in outcomes}
    comparisons = compare_policies(outcomes, roles, by_request=by_request, seed=_RESAMPLING_SEED)
    lessons = {
        policy: [run.lesson for run in runs if run.lesson is not None] for policy, runs in outcomes.items()
    }
    return CellEntry(
        name=name,
        load=load,
        warmup_s=warmup_s,
        policies=[
            policy_entry(policy, roles[policy], weights.get(policy, {}), [run.figures for run in runs])
            for policy, runs in outcomes.items()
        ],
        comparisons=comparisons,
        tuning=tuning,
        conclusion=[
            *conclusion(comparisons, candidate, margin),
            *(lesson_sentence(policy, found) for policy, found in lessons.items() if found),
        ],
    )


def role_of(name: str, candidate: str) -> str:
    """See `epp.lab.compare.document.PolicyEntry`."""
    if name == candidate:
        return "candidate"
    return "yardstick" if name in ORACLES else "baseline"


def fleet_rows(fleet: FleetSpec) -> list[dict[str, Any]]:
    """A fleet as plain values."""
    return [
        {
            "address": replica.address,
            "engine_class": replica.engine_class.name,
            "rtt_ms": replica.network.rtt_ms,
            "region": replica.region,
            "lost_hit_share": replica.lost_hit_share,
        }
        for replica in fleet.replicas
    ]


def _with_tuned(policy: PolicyChoice, tuned: Mapping[str, Tuned]) -> PolicyChoice:
    found = tuned.get(policy.name)
    return policy if found is None else replace(policy, weights=dict(found.weights))


def _tuning_row(tuned: Tuned) -> dict[str, Any]:
    return {
        "policy": tuned.policy,
        "weights": dict(tuned.weights),
        "objective_at_defaults": tuned.start,
        "objective": tuned.best,
        "tried": tuned.tried,
    }


def _offered(outcomes: Sequence[Outcome]) -> float:
    rates = [outcome.figures.input_tokens_per_s for outcome in outcomes]
    return sum(rates) / len(rates)


def _answered_per_s(task: Task, outcome: Outcome) -> float:
    """Answers per second over a run that started at 0, from its last end."""
    requests = task.cell.source.requests(task.seed)
    ends = outcome.latencies["end_ms"]
    last_s = float(ends[ends == ends].max()) / 1000.0  # noqa: PLR0124 - NaN is unlike itself
    return len(requests) / last_s
