"""One picture of what several pickers show of themselves, and of what a policy said to each. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.console.figures import share
from epp.console.frames import ROWS
from epp.console.history import (
    BINS,
    BUCKET_S,
    CACHED,
    E2E,
    FAILED,
    MOST_FAILURES,
    PROMPT,
    QUEUED,
    TTFT,
    UNTIMED,
    quantile_ms,
)
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    _Frame = dict[str, Any]

#: What is shown of the last 5 minutes and the last hour. Latencies are in ms, queues in requests, and hits
#: are a share of the prompts' tokens.
FIGURES = ("req/s", "err/s", "TTFT p50", "TTFT p95", "E2E p50", "E2E p95", "queue", "hits")
#: Every replica, and no replica or model.
ALL, _NAMELESS = "all", {"replica": "no replica", "model": "no model"}
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
    failures = sorted(chain(*(frame["failures"] for frame in frames)), reverse=True)
    for frame in frames:
        frame["label"] = f"{frame['id']} {frame['rate']:,.0f}/s" + (", leads" if frame["leads"] else "")
    pickers = [{**frame, "decisions": None} for frame in frames]
    return {
        "policies": offered(),
        "pickers": pickers,
        "decisions": rows[:ROWS],
        "failures": failures[:MOST_FAILURES],
    }


def past(pasts: Sequence[dict[str, Any]], regions: Mapping[str, str]) -> dict[str, Any]:
    """Put together the last hour of all pickers: tables of `FIGURES` by what they are grouped by.

    A row is a name and its figures in each window.
    """
    found = defaultdict[tuple[str, str], list[Any]](list)
    for one in pasts:
        for group, name, *windows in one["rows"]:
            part = list(zip(windows, one["seconds"], strict=True))
            found[group, name or _NAMELESS[group]].append(part)
            if group == "replica":
                found["region", ALL].append(part)
                found["region", regions.get(name, "left the pool") if name else _NAMELESS[group]].append(part)
    groups: dict[str, list[Any]] = {"region": [], "model": [], "replica": []}
    for (group, name), parts in found.items():
        groups[group].append([name, *(_figures(each, len(pasts)) for each in zip(*parts, strict=True))])
    return {"figures": FIGURES, "groups": groups}


def _figures(parts: Sequence[tuple[list[int], float]], pickers: int) -> list[float | None]:
    """Compute `FIGURES` of what is summed; a rate is over each picker's own time, as some are younger."""
    each = np.array([counts for counts, _ in parts])
    counts, rates = each.sum(axis=0), (each.T / [seconds or 1.0 for _, seconds in parts]).sum(axis=1)
    latencies = [quantile_ms(counts[at : at + BINS], part) for at in (TTFT, E2E) for part in (0.5, 0.95)]
    requests = rates[FAILED] + rates[UNTIMED] + rates[E2E:].sum()
    hits = counts[CACHED] / counts[PROMPT] if counts[PROMPT] else math.nan
    found = [requests, rates[FAILED], *latencies, rates[QUEUED] * BUCKET_S / pickers, hits]
    return [None if math.isnan(value) else float(f"{value:.3g}") for value in found]


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
