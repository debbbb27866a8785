"""One picture of what several pickers show of themselves, and of what a policy said to each. Pure."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from epp.console.figures import share
from epp.console.frames import ROWS
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    _Frame = dict[str, Any]

#: How fast a rate follows the frames.
_FOLLOW = 0.3


def offered() -> list[str]:
    """List the policies that one may ask: those that serve, which the baselines of `gorgo-epp-lab` do not."""
    return [name for name, point in POLICIES.items() if not point.module.startswith("epp_lab.")]


def add_rate(frame: _Frame, before: _Frame | None) -> None:
    """Add to a picker's frame the decisions a second, by the frame before."""
    frame["rate"] = 0.0
    if before is not None and frame["at"] > before["at"]:
        rate = max(frame["made"] - before["made"], 0) / (frame["at"] - before["at"])
        frame["rate"] = before["rate"] + _FOLLOW * (rate - before["rate"])


def merged(frames: Sequence[_Frame]) -> dict[str, Any]:
    """Put together the frames of all pickers."""
    rows = sorted(chain(*(frame["decisions"] for frame in frames)), key=lambda row: -row["at"])
    for frame in frames:
        frame["label"] = f"{frame['id']} {frame['rate']:,.0f}/s" + (", leads" if frame["leads"] else "")
    pickers = [{**frame, "decisions": None} for frame in frames]
    return {"policies": offered(), "pickers": pickers, "decisions": rows[:ROWS]}


def summed(policy: str, answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Put together what a policy said to all pickers: ``words``, and a table of ``columns`` and ``rows``."""
    sums, live, other = Counter[str](), Counter[str](), Counter[str]()
    words = dict[str, None]()
    for answer in answers:
        if "error" in answer:
            words[answer["error"]] = None
        else:
            for total, part in ((sums, "sums"), (live, "live"), (other, "other")):
                total.update(answer[part])
    if sums["failed"]:
        words[f"{sums['failed']:,} decisions could not be asked anew"] = None
    count = sums["decisions"]
    if count:
        mean_ms = sums["ms"] / count
        error_ms = math.sqrt(max(sums["ms2"] / count - mean_ms**2, 0.0) / count)
        words[
            f"{policy} would have picked the same on {share(sums['agreed'], count)} of {count:,} decisions;"
            f" {mean_ms:+,.1f} ± {1.96 * error_ms:,.1f} ms a request, estimated at learned rates."
            " Queues stay as the live picks made them: none is simulated."
        ] = None
    rows = [[each, share(picked, count), share(other[each], count)] for each, picked in live.most_common(20)]
    return {"words": [*words], "columns": ["endpoint", "picked", policy], "rows": rows}
