"""What a comparison found, as plain values: the content of ``results.json`` and of the report.

Owns the schema and how figures and evidence become it. Pure. No wall-clock times and no paths are in it, so
that equal commands give equal bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.lab.compare.evidence import (
    MIN_UNITS,
    Evidence,
    SeedEvidence,
    TraceEvidence,
    bound_against_best,
    compare_with_best,
    ratio,
)
from epp.lab.compare.resample import Statistic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.lab.compare.measure import Figures
    from epp.lab.compare.simulate import Outcome

SCHEMA = 1
#: What is compared, in the order in which it is shown; the first two are what conclusions are about.
COMPARED = (("ttft_ms", "p95"), ("e2e_ms", "p95"), ("ttft_ms", "p50"), ("e2e_ms", "p50"), ("itl_ms", "p50"))
KNEE_E2E_FACTOR = 3.0
METRIC_LABELS = {"ttft_ms": "TTFT", "e2e_ms": "E2E", "itl_ms": "ITL"}
_STATISTICS = {"p50": Statistic(50.0), "p95": Statistic(95.0)}
_DIGITS = 6


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one cell; figures are means over seeds, of latencies the geometric one.

    Attributes:
        name: policy.
        role: ``candidate``, ``baseline`` or ``yardstick``.
        weights: used, where they differ from the policy's defaults.
        errors: failed requests, all seeds.
        saturated_seeds: seeds in which the run could not keep up.
        ttft_ms, e2e_ms, itl_ms, slip_ms: mean, p50, p95, p99.
        believed_hit_share, true_hit_share: of prompt tokens.
        share: of each replica.
        hottest_share: mean over seeds of the share of the replica that served most.
        busy_share: of each replica.
        unanswered_share: still unanswered when the last request was due.
        per_seed: the main figures of each seed.
        ttft_curve_ms, e2e_curve_ms: percentiles at `epp.lab.compare.measure.CURVE_POINTS`.
        share_over_time: per time bin, share of each replica; first seed.
        bin_s: width of a time bin.
    """

    name: str
    role: str
    weights: dict[str, float]
    errors: int
    saturated_seeds: int
    ttft_ms: dict[str, float]
    e2e_ms: dict[str, float]
    itl_ms: dict[str, float]
    slip_ms: dict[str, float]
    believed_hit_share: float
    true_hit_share: float
    share: list[float]
    hottest_share: float
    busy_share: list[float]
    unanswered_share: float
    per_seed: list[dict[str, float]]
    ttft_curve_ms: list[float]
    e2e_curve_ms: list[float]
    share_over_time: list[list[int]]
    bin_s: float

    @property
    def saturated(self) -> bool:
        """Whether it could not keep up in most seeds."""
        return 2 * self.saturated_seeds > len(self.per_seed)

    def value(self, metric: str, statistic: str) -> float:
        """E.g. ``value("ttft_ms", "p95")``."""
        found: float = getattr(self, metric)[statistic]
        return found


class AgainstCandidate(msgspec.Struct, frozen=True):
    """A policy's figure over the candidate's, with its interval; null where there is none."""

    ratio: float
    low: float
    high: float


class AgainstBest(msgspec.Struct, frozen=True):
    """A policy's figure over the best of the others (Hsu), all intervals of a metric holding at once.

    ``high`` is null where nothing bounds it.
    """

    ratio: float
    low: float
    high: float | None
    possibly_best: bool


class CandidateBound(msgspec.Struct, frozen=True):
    """The candidate over the best baseline: with 95 % confidence at most ``upper``."""

    rival: str
    ratio: float
    upper: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric compared over the policies of a cell.

    Attributes:
        metric, statistic: e.g. ``ttft_ms`` and ``p95``.
        unit: ``seed`` or ``request`` (stationary bootstrap within a trace).
        units: how many.
        left_out: policies without a figure in some unit.
        to_candidate: by policy; yardsticks too.
        to_best: by policy, yardsticks left out; empty without evidence enough.
        bound: null without evidence enough, or without a baseline.
    """

    metric: str
    statistic: str
    unit: str
    units: int
    left_out: list[str]
    to_candidate: dict[str, AgainstCandidate]
    to_best: dict[str, AgainstBest]
    bound: CandidateBound | None

    @property
    def label(self) -> str:
        """E.g. ``TTFT p95``."""
        return f"{METRIC_LABELS[self.metric]} {self.statistic}"


class CellEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        name: heading.
        load: figures of the load (`epp.lab.compare.trace_stats.TraceStats` of the first seed) and its pace.
        warmup_s: what was dropped at the start.
        policies: in the order asked for.
        comparisons: one a metric.
        tuning: what was tuned, by policy.
        conclusion: sentences.
    """

    name: str
    load: dict[str, Any]
    warmup_s: float
    policies: list[PolicyEntry]
    comparisons: list[Comparison]
    tuning: list[dict[str, Any]]
    conclusion: list[str]

    def policy(self, name: str) -> PolicyEntry:
        """The entry of that name."""
        return next(p for p in self.policies if p.name == name)


class SweepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How far policies keep up.

    Attributes:
        loads: input tokens per second offered in each cell of the sweep, rising.
        cells: names of the cells.
        knees: by policy, the highest load up to which it was not saturated and its E2E p95 at most
            `KNEE_E2E_FACTOR` times that at the lightest; null when not even the lowest.
    """

    loads: list[float]
    cells: list[str]
    knees: dict[str, float | None]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison."""

    schema: int
    fleet: list[dict[str, Any]]
    seeds: list[int]
    candidate: str
    margin: float
    cells: list[CellEntry]
    sweep: SweepEntry | None = None


def sweep_entry(cells: Sequence[CellEntry]) -> SweepEntry:
    """Find the knees of a sweep's cells, in rising order of load."""
    loads = [float(cell.load["input_tokens_per_s"]) for cell in cells]
    knees: dict[str, float | None] = {}
    for lightest in cells[0].policies:
        knees[lightest.name] = None
        for load, cell in zip(loads, cells, strict=True):
            entry = cell.policy(lightest.name)
            if entry.saturated or entry.e2e_ms["p95"] > KNEE_E2E_FACTOR * lightest.e2e_ms["p95"]:
                break
            knees[lightest.name] = load
    return SweepEntry(loads=loads, cells=[cell.name for cell in cells], knees=knees)


def encode(document: Document) -> bytes:
    """The bytes of ``results.json``: six significant digits, null for what is not a number."""
    plain = _rounded(msgspec.to_builtins(document))
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def policy_entry(name: str, role: str, weights: Mapping[str, float], runs: Sequence[Figures]) -> PolicyEntry:
    """One policy's runs, one a seed, as an entry."""
    return PolicyEntry(
        name=name,
        role=role,
        weights=dict(weights),
        errors=sum(run.errors for run in runs),
        saturated_seeds=sum(run.saturated for run in runs),
        **{metric: _over_seeds(runs, metric) for metric in ("ttft_ms", "e2e_ms", "itl_ms", "slip_ms")},
        believed_hit_share=_mean([run.believed_hit_share for run in runs]),
        true_hit_share=_mean([run.true_hit_share for run in runs]),
        share=_columns_mean([run.share for run in runs]),
        hottest_share=_mean([run.hottest_share for run in runs]),
        busy_share=_columns_mean([run.busy_share for run in runs]),
        unanswered_share=_mean([run.unanswered_share for run in runs]),
        per_seed=[_seed_row(run) for run in runs],
        ttft_curve_ms=_columns_mean([run.ttft_curve_ms for run in runs]),
        e2e_curve_ms=_columns_mean([run.e2e_curve_ms for run in runs]),
        share_over_time=[list(row) for row in runs[0].share_over_time],
        bin_s=runs[0].bin_s,
    )


def _seed_row(run: Figures) -> dict[str, float]:
    return {
        "requests": run.requests,
        "errors": run.errors,
        "saturated": int(run.saturated),
        **{
            f"{metric.removesuffix('_ms')}_{statistic}_ms": run.value(metric, statistic)
            for metric in ("ttft_ms", "e2e_ms", "itl_ms")
            for statistic in ("p50", "p95", "p99")
        },
        "slip_p95_ms": run.slip_ms.p95,
        "believed_hit_share": run.believed_hit_share,
        "true_hit_share": run.true_hit_share,
        "hottest_share": run.hottest_share,
    }


def _over_seeds(runs: Sequence[Figures], metric: str) -> dict[str, float]:
    out = {}
    for statistic in ("mean", "p50", "p95", "p99"):
        values = np.array([run.value(metric, statistic) for run in runs])
        positive = bool((values > 0).all())
        out[statistic] = float(np.exp(np.log(values).mean())) if positive else float(values.mean())
    return out


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _columns_mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Mean of each column; of a run's replicas may be named differently live, then the first row stands."""
    if len({len(row) for row in rows}) != 1:
        return list(rows[0])
    return [float(v) for v in np.mean(np.array(rows), axis=0)] if rows[0] else []


def compare_policies(
    outcomes: Mapping[str, Sequence[Outcome]], roles: Mapping[str, str], *, by_request: bool, seed: int
) -> list[Comparison]:
    """All metrics of `COMPARED`.

    Args:
        outcomes: per policy, one outcome a seed, in the same order of seeds.
        roles: role of each policy; exactly one candidate.
        by_request: the evidence is within one trace, not over seeds.
        seed: of the resampling.
    """
    return [
        _comparison(outcomes, roles, metric, statistic, by_request=by_request, seed=seed)
        for metric, statistic in COMPARED
    ]


def _comparison(
    outcomes: Mapping[str, Sequence[Outcome]],
    roles: Mapping[str, str],
    metric: str,
    statistic: str,
    *,
    by_request: bool,
    seed: int,
) -> Comparison:
    table = {name: [run.figures.value(metric, statistic) for run in runs] for name, runs in outcomes.items()}
    names = [name for name, row in table.items() if all(v > 0 and math.isfinite(v) for v in row)]
    candidate = next(name for name, role in roles.items() if role == "candidate")
    empty: dict[str, Any] = {"to_candidate": {}, "to_best": {}, "bound": None}
    units = len(next(iter(table.values())))
    found: dict[str, Any] = empty
    evidence: Evidence | None = None
    if candidate in names and len(names) > 1:
        if by_request:
            columns = [[run.latencies[metric] for run in outcomes[name]] for name in names]
            evidence = TraceEvidence(columns, _STATISTICS[statistic], seed=seed)
            units = evidence.units
        else:
            logs = np.log(np.array([table[name] for name in names])).T
            evidence = SeedEvidence(logs, seed=seed) if units >= MIN_UNITS else None
        found = _found(evidence, table, names, roles, candidate)
    return Comparison(
        metric=metric,
        statistic=statistic,
        unit="request" if by_request else "seed",
        units=units,
        left_out=[name for name in table if name not in names],
        **found,
    )


def _found(
    evidence: Evidence | None,
    table: Mapping[str, Sequence[float]],
    names: Sequence[str],
    roles: Mapping[str, str],
    candidate: str,
) -> dict[str, Any]:
    at = names.index(candidate)
    to_candidate = {}
    for i, name in enumerate(names):
        if evidence is None:
            logs = np.log(table[name]) - np.log(table[candidate])
            entry = AgainstCandidate(float(np.exp(logs.mean())), math.nan, math.nan)
        else:
            r = ratio(evidence, i, at)
            entry = AgainstCandidate(r.ratio, r.low, r.high)
        to_candidate[name] = entry
    to_best, bound = {}, None
    if evidence is not None:
        real = [i for i, name in enumerate(names) if roles[name] != "yardstick"]
        for i, best in zip(real, compare_with_best(evidence, among=real), strict=True):
            to_best[names[i]] = AgainstBest(best.ratio, best.low, best.high, best.possible)
        group = [i for i in real if i != at]
        if group:
            b = bound_against_best(evidence, at, group)
            bound = CandidateBound(names[b.rival], b.ratio, b.upper)
    return {"to_candidate": to_candidate, "to_best": to_best, "bound": bound}
