"""What may be said: sentences that the intervals allow, and no more.

Owns the wording. Pure: entries of a document in, sentences out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.replay.evidence import ENOUGH_UNITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.replay.document import CellEntry, Comparison, PolicyEntry

#: Metrics that sentences are about; the rest is in tables and plots.
SAID = (("ttft_ms", "p95"), ("e2e_ms", "p95"))


def cell_conclusion(cell: CellEntry, candidate: str, margin: float) -> list[str]:
    """Sentences about one load.

    Args:
        cell: figures and comparisons; its own ``conclusion`` is not read.
        candidate: the policy that is judged.
        margin: what a policy may be worse by and still count as not inferior, e.g. 0.05.
    """
    out = []
    said = [c for c in cell.comparisons if (c.metric, c.statistic) in SAID]
    for comparison in said:
        out += _against_baselines(comparison, candidate, margin)
    out += _who_is_best(said)
    out += _yardsticks(cell, candidate)
    out += _cautions(cell, said)
    return out


def change(ratio: float) -> str:
    """A ratio as a signed per cent: ``-12 %``, ``+3.4 %``."""
    percent = 100.0 * (ratio - 1.0)
    if not math.isfinite(percent):
        return "unknown"
    digits = 1 if abs(percent) < 10 else 0
    return f"{percent:+.{digits}f} %".replace("-0.0 %", "0 %").replace("+0.0 %", "0 %")


def _against_baselines(comparison: Comparison, candidate: str, margin: float) -> list[str]:
    bound, label = comparison.bound, comparison.label
    if bound is None:
        if len(comparison.to_candidate) > 1:
            return [
                (
                    f"{label}: {comparison.units} {_units(comparison)} cannot carry an interval; "
                    "nothing is concluded."
                )
            ]
        return []
    rival = comparison.to_candidate[bound.rival]
    paired = f"{change(1 / rival.ratio)} [{change(1 / rival.high)}, {change(1 / rival.low)}]"
    lead = f"{label}: {candidate} against {bound.rival}, the lowest of the others, {paired}"
    if bound.upper < 1.0:
        return [
            f"{lead}; it is lower than every other policy, by at least {change(bound.upper).lstrip('-')}."
        ]
    within = f"{100 * margin:g} %"
    if bound.upper <= 1.0 + margin:
        return [
            (
                f"{lead}; not shown to be lower than all others, but not inferior to any by more than the "
                f"margin of {within}: at most {change(bound.upper)}."
            )
        ]
    mine = comparison.to_best.get(candidate)
    if mine is not None and not mine.possibly_best:
        above = "" if mine.high is None else f": at most {change(mine.high)} above whichever is"
        return [f"{lead}; it is not the best{above}."]
    return [
        (
            f"{lead}; no difference from the best is shown, and non-inferiority within {within} is "
            f"not shown either: at most {change(bound.upper)}."
        )
    ]


def _who_is_best(comparisons: Sequence[Comparison]) -> list[str]:
    out = []
    for comparison in comparisons:
        possible = [name for name, best in comparison.to_best.items() if best.possibly_best]
        if not possible:
            continue
        excluded = len(comparison.to_best) - len(possible)
        if len(possible) == 1:
            out.append(f"{comparison.label}: {possible[0]} is shown to be the best of those compared.")
        elif excluded:
            out.append(
                f"{comparison.label}: the best is among {_listed(possible)}; "
                f"{excluded} other{'s are' if excluded > 1 else ' is'} shown not to be."
            )
        else:
            out.append(f"{comparison.label}: which policy is the best cannot be told from these runs.")
    return out


def _yardsticks(cell: CellEntry, candidate: str) -> list[str]:
    out = []
    for entry in cell.policies:
        if entry.role != "yardstick":
            continue
        gaps = []
        for comparison in cell.comparisons:
            found = comparison.to_candidate.get(entry.name)
            if (comparison.metric, comparison.statistic) in SAID and found is not None and found.ratio > 0:
                gaps.append(f"{comparison.label} {change(1 / found.ratio)}")
        if gaps:
            out.append(f"Gap of {candidate} to the yardstick {entry.name}: {', '.join(gaps)}.")
    return out


def _cautions(cell: CellEntry, comparisons: Sequence[Comparison]) -> list[str]:
    out = []
    saturated = [p for p in cell.policies if p.saturated_seeds]
    if saturated:
        out.append(
            f"Could not keep up with the load: {_listed([_saturation(p) for p in saturated])}; latencies "
            "there grow with the length of the window, and ratios to them mean little."
        )
    failed = [p for p in cell.policies if p.errors]
    if failed:
        counts = _listed([f"{p.name} {p.errors}" for p in failed])
        out.append(f"Failed requests, whose latencies are in no figure: {counts}.")
    left_out = sorted({name for c in comparisons for name in c.left_out})
    if left_out:
        out.append(f"Without a figure in some run, and so not compared: {_listed(left_out)}.")
    first = comparisons[0] if comparisons else None
    if first is not None and first.unit == "request":
        out.append(
            "The intervals hold within this recorded trace (stretches of time drawn again); they say nothing "
            "of other days."
        )
    elif first is not None and first.bound is not None and first.units < ENOUGH_UNITS:
        out.append(f"With {first.units} seeds intervals are indicative only; {ENOUGH_UNITS} or more are due.")
    return out


def _saturation(policy: PolicyEntry) -> str:
    seeds = len(policy.per_seed)
    return policy.name if seeds == 1 else f"{policy.name} ({policy.saturated_seeds} of {seeds} seeds)"


def _units(comparison: Comparison) -> str:
    return comparison.unit if comparison.units == 1 else f"{comparison.unit}s"


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
