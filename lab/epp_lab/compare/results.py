"""What a comparison found, as plain values: the content of ``results.json`` and of the report.

Equal commands give equal bytes but for ``made``, and that too under one ``SOURCE_DATE_EPOCH``. Pure.

* The whole: ``made`` (version, commit, command, date), ``fleet``, ``seeds``, ``candidate``, ``margin`` and
  ``cells``.
* A cell is a load: ``name``, ``load`` (its figures and pace), ``warmup_s``, ``policies``, ``comparisons``,
  ``tuning`` and ``conclusion``, which are sentences.
* A policy has the means of its `epp_lab.compare.measure.Figures` over seeds (of latencies the geometric
  mean), the main figures of each seed, and a ``role``: candidate, baseline, or yardstick, which sees what
  no picker can.
* A comparison is one metric: ``to_candidate`` has each policy's figure over the candidate's with its
  interval, ``to_best`` each policy's over the best of the others (Hsu), without yardsticks. ``unit`` is
  ``seed``, or ``request`` where stretches of one trace are resampled. Intervals are null where the evidence
  carries none.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp_lab.compare.compare import METRIC_NAMES
from epp_lab.compare.measure import METRICS
from epp_lab.compare.stats import (
    MIN_UNITS,
    Evidence,
    Statistic,
    compare_with_best,
    seed_evidence,
    trace_evidence,
)
from epp_lab.compare.trace_stats import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.measure import Figures
    from epp_lab.compare.plan import PlanCell
    from epp_lab.compare.simulate import Outcome

SCHEMA = 1
#: What is compared, in the order in which it is shown; the first two are what conclusions are about.
COMPARED = (("ttft_ms", 95.0), ("e2e_ms", 95.0), ("ttft_ms", 50.0), ("e2e_ms", 50.0), ("itl_ms", 50.0))
#: Of the first seed alone.
_OVER_TIME = ("ttft_over_time_ms", "e2e_over_time_ms", "share_over_time")
_DIGITS = 6
_RESAMPLING_SEED = 20_260_401


def encode(document: object) -> bytes:
    """Return the bytes of ``results.json``: six significant digits, null for what is not a number."""
    plain = _rounded(msgspec.to_builtins(document))
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def load_entry(cell: PlanCell, seed: int, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Describe a load by the requests of one seed."""
    requests = cell.source.requests(seed)
    offered = [run.figures.input_tokens_per_s for runs in outcomes.values() for run in runs]
    return describe(requests) | {
        "time_scale": cell.time_scale,
        "load": cell.load,
        "max_in_flight": cell.max_in_flight,
        "closed_loop": any(r.after is not None for r in requests),
        "input_tokens_per_s": sum(offered) / len(offered),
    }


def policy_entry(
    name: str, role: str, weights: Mapping[str, float], runs: Sequence[Figures]
) -> dict[str, Any]:
    """Sum up one policy's runs, one a seed."""
    shares = ("believed_hit_share", "true_hit_share", "hottest_share", "unanswered_share")
    columns = ("share", "busy_share", "ttft_curve_ms", "e2e_curve_ms")
    return {
        "name": name,
        "role": role,
        "weights": dict(weights),
        "errors": sum(run.errors for run in runs),
        "saturated_seeds": sum(run.saturated for run in runs),
        **{metric: _over_seeds(runs, metric) for metric in (*METRICS, "slip_ms")},
        **{share: float(np.mean([getattr(run, share) for run in runs])) for share in shares},
        **{column: _columns_mean([getattr(run, column) for run in runs]) for column in columns},
        "per_seed": [_seed_row(run) for run in runs],
        **{series: getattr(runs[0], series) for series in _OVER_TIME},
        "bin_s": runs[0].bin_s,
    }


def _seed_row(run: Figures) -> dict[str, float]:
    return {
        "requests": run.requests,
        "errors": run.errors,
        "saturated": int(run.saturated),
        **{
            f"{metric.removesuffix('_ms')}_{statistic}_ms": run.value(metric, statistic)
            for metric in METRICS
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


def _columns_mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column; live, the runs' replicas may differ: then the first row stands."""
    if len({len(row) for row in rows}) != 1:
        return list(rows[0])
    return [float(v) for v in np.mean(np.array(rows), axis=0)] if rows[0] else []


def compare_policies(
    outcomes: Mapping[str, Sequence[Outcome]], roles: Mapping[str, str], *, by_request: bool
) -> list[dict[str, Any]]:
    """Compare all metrics of `COMPARED`.

    Args:
        outcomes: per policy, one outcome a seed, in the same order of seeds.
        roles: role of each policy; exactly one candidate.
        by_request: the evidence is within one trace, not over seeds.
    """
    return [_comparison(outcomes, roles, metric, q, by_request=by_request) for metric, q in COMPARED]


def _comparison(
    outcomes: Mapping[str, Sequence[Outcome]],
    roles: Mapping[str, str],
    metric: str,
    q: float,
    *,
    by_request: bool,
) -> dict[str, Any]:
    statistic = Statistic(q)
    table = {
        name: [run.figures.value(metric, statistic.label) for run in runs] for name, runs in outcomes.items()
    }
    names = [name for name, row in table.items() if all(v > 0 and math.isfinite(v) for v in row)]
    candidate = next(name for name, role in roles.items() if role == "candidate")
    units = len(table[candidate])
    found: dict[str, Any] = {
        "metric": metric,
        "label": f"{METRIC_NAMES[metric]} {statistic.label}",
        "unit": "request" if by_request else "seed",
        "units": units,
        "to_candidate": {},
        "to_best": {},
    }
    if candidate not in names or len(names) < 2:
        return found
    logs = np.log(np.array([table[name] for name in names])).T
    at = names.index(candidate)
    evidence: Evidence | None = None
    if by_request:
        columns = [[run.latencies[metric] for run in outcomes[name]] for name in names]
        evidence = trace_evidence(columns, statistic, seed=_RESAMPLING_SEED)
        found["units"] = evidence.units
    elif units >= MIN_UNITS:
        evidence = seed_evidence(logs, seed=_RESAMPLING_SEED)
    for i, name in enumerate(names):
        ends = (
            evidence.interval(i, at) if evidence else ((logs[:, i] - logs[:, at]).mean(), math.nan, math.nan)
        )
        found["to_candidate"][name] = dict(zip(("ratio", "low", "high"), map(math.exp, ends), strict=True))
    if evidence is not None:
        real = [i for i, name in enumerate(names) if roles[name] != "yardstick"]
        best = zip(real, compare_with_best(evidence, real), strict=True)
        found["to_best"] = {names[i]: asdict(one) for i, one in best}
    return found
