"""What may be said of policies that learned while they served, in sentences.

Owns the words. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.replay.learned import Lesson
    from epp.replay.simulate import Outcome


def learned_sentences(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """One sentence for each policy that learned; none for the others."""
    out = []
    for name, runs in outcomes.items():
        lessons = [run.lesson for run in runs if run.lesson is not None]
        if lessons:
            out.append(_sentence(name, lessons))
    return out


def _sentence(name: str, lessons: Sequence[Lesson]) -> str:
    firsts = [lesson.first_model_s for lesson in lessons]
    known = [first for first in firsts if not math.isnan(first)]
    rounds = sum(len(lesson.rounds) for lesson in lessons)
    start = f"{name} began cold in each run and learned within it"
    if not known:
        why = "no round came due" if not rounds else f"its gate refused every model ({rounds})"
        return f"{start}: {why}, so its fallback decided throughout"
    passed = sum(lesson.passed for lesson in lessons)
    shares = ", ".join(
        f"{words} {_mean([lesson.share(word) for lesson in lessons]):.1%}"
        for word, words in (
            ("model", "by the model"),
            ("explored", "at random"),
            ("out-of-distribution", "by the fallback because an endpoint was unlike the training"),
        )
    )
    never = len(firsts) - len(known)
    where = f" in {len(known)} of {len(firsts)} runs" if never else ""
    return (
        f"{start}: first model after {_range(known)} s{where}; "
        f"models trained: {rounds}, let through: {passed}; "
        f"of the decisions since then {shares}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
