"""One picture of what several pickers show of themselves, and of what a policy said to each. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from epp.console.figures import share
from epp.console.frames import ROWS, largest_flows
from epp.console.history import FIGURES, MOST_FAILURES, figures
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    _Frame = dict[str, Any]


def offered() -> list[str]:
    """List the policies that one may ask: those that serve, which the baselines of `gorgo-epp-lab` do not."""
    return [name for name, point in POLICIES.items() if not point.module.startswith("epp_lab.")]


def merged(frames: Sequence[_Frame]) -> dict[str, Any]:
    """Put together the frames of all pickers."""
    rows = sorted(chain(*(frame["decisions"] for frame in frames)), key=lambda row: -row["at"])
    failures: dict[tuple[str, ...], list[Any]] = {}
    for *names, decision, at_s, count in sorted(
        chain(*(frame["failures"] for frame in frames)), key=lambda row: row[4]
    ):
        before = failures.pop(tuple(names), [0])
        failures[tuple(names)] = [*names, decision, at_s, before[-1] + count]
    for frame in frames:
        frame["label"] = frame["id"] + (", leads" if frame["leads"] else "")
    pickers = [{**frame, "decisions": None, "past": None, "queue": None} for frame in frames]
    return {
        "policies": offered(),
        "pickers": pickers,
        "queue": largest_flows([*chain.from_iterable(frame["queue"] for frame in frames)]),
        "decisions": rows[:ROWS],
        "failures": [*failures.values()][: -1 - MOST_FAILURES : -1],
    }


def past(frames: Sequence[_Frame]) -> dict[str, Any]:
    """Put together the last hour of all pickers: tables of `FIGURES` by what they are grouped by.

    A row is a name and its figures in each window.
    """
    regions = {row["id"]: row["region"] or "no region" for frame in frames for row in frame["fleet"]}
    groups: dict[str, defaultdict[str, list[Any]]]
    groups = {group: defaultdict(list) for group in ("region", "model", "replica")}
    for frame in frames:
        for group, name, *windows in frame["past"]["rows"]:
            part = list(zip(windows, frame["past"]["seconds"], strict=True))
            groups[group][name or "none"].append(part)
            if group == "replica":
                groups["region"]["all"].append(part)
                groups["region"][regions.get(name, "left the pool" if name else "none")].append(part)
    tables = {
        group: [
            [name, *(figures(each, len(frames)) for each in zip(*parts, strict=True))]
            for name, parts in rows.items()
        ]
        for group, rows in groups.items()
    }
    return {"figures": FIGURES, "groups": tables}


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
            f"{policy} would have chosen the same on {share(sums['agreed'], count)} of {count:,} decisions;"
            f" {mean_ms:+,.1f} ± {1.96 * error_ms:,.1f} ms a request, estimated at learned rates."
            " Queues stay as the live decisions made them: none is simulated."
        ] = None
    rows = [[each, share(picked, count), share(other[each], count)] for each, picked in live.most_common(20)]
    return {"words": [*words], "columns": ["endpoint", "chosen", policy], "rows": rows}
