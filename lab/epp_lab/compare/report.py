"""The report of a comparison: tables and sentences, for a terminal and as a page.

A sentence says what an interval allows and no more. `epp_lab.compare.results` describes what comes in.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from epp_lab.compare.compare import share_text
from epp_lab.compare.measure import CURVE_POINTS, METRICS, SATURATED_SLIP_P95_MS, SATURATED_UNANSWERED_SHARE
from epp_lab.compare.stats import ENOUGH_UNITS
from epp_lab.page import html, page
from epp_lab.plot import COLORS, Panel, figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from epp_lab.compare.learned import Lesson

    Values = Mapping[str, Any]

#: Columns of what is no terminal: tables are wide.
PLAIN_WIDTH = 180
#: Where percentiles are drawn: from p90 to p99 is as far as from p0 to p90; p100 would have no place.
_PERCENTILES = {-math.log10(1.0 - q / 100.0): f"p{q:g}" for q in CURVE_POINTS if q < 100.0}
_PLACES = tuple(_PERCENTILES)
_TICKS = [place for place, text in _PERCENTILES.items() if text in ("p0", "p50", "p90", "p95", "p99")]
#: Room for names of replicas below a chart; the others show under the pointer.
_NAMES_CHARACTERS = 36
_LOWEST = "the lowest"
#: Beyond its knee a policy's E2E p95 is over so many times the least of the lightest load.
_KNEE_TIMES = 2.0
_NOTES = (
    f"saturated: over {100 * SATURATED_UNANSWERED_SHARE:g} % unanswered when the last request was due, "
    f"or client lag p95 over {SATURATED_SLIP_P95_MS:,.0f} ms; "
)
_YARDSTICKS = "(yardstick): sees the engines' true state"
_GATEWAYS = "gateways were driven one after the other"
_DECIDED_BY = {"model": "by the model", "explored": "at random", "out-of-distribution": "by the fallback"}


# ---- tables ---------------------------------------------------------------------------------------------


def tables(document: Values) -> list[RenderableType]:
    """Lay out a document, load by load."""
    parts: list[RenderableType] = []
    for cell in document["cells"]:
        notes = Text(_NOTES + (_YARDSTICKS if document["fleet"] else _GATEWAYS))
        parts += [_figures(cell, len(document["seeds"])), notes, _comparisons(cell, document["candidate"])]
        parts += [_tuned(cell["tuning"])] if cell["tuning"] else []
        parts += [Text(f"- {sentence}") for sentence in cell["conclusion"]]
    return parts + [_knee(load, cells) for load, cells in _sweeps(document).items()]


def report_page(document: Values) -> str:
    """Write a document as a page: the verdict, and of each load charts, tables and conclusions."""
    parts = []
    for cell in document["cells"]:
        by_e2e = sorted(cell["policies"], key=lambda policy: policy["e2e_ms"]["p95"])
        shown = sorted(by_e2e, key=lambda policy: policy["role"] != "candidate")[:COLORS]
        replicas = [replica["address"].rpartition(":")[0] for replica in document["fleet"]]
        cut = f": {document['candidate']} and the others of lowest E2E p95" if len(by_e2e) > COLORS else ""
        parts.append(figure(cell["name"] + cut, panels({each["name"]: each for each in shown}, replicas)))
        parts += map(html, tables({**document, "cells": [cell]}))
    for load, cells in _sweeps(document).items():
        parts += [figure(f"{load}: latency by load", _by_load(cells)), html(_knee(load, cells))]
    title = f"{document['candidate']} compared"
    return page(title, document["made"], *parts, verdict=headline(document))


def panels(
    runs: Mapping[str, Values], replicas: Sequence[str], moments: Mapping[float, str] | None = None
) -> list[Panel]:
    """Chart runs: how latencies are spread, how they go over time, and who had how much of the load.

    Args:
        runs: fields of `epp_lab.compare.measure.Figures` by policy.
        replicas: names of the replicas; they are numbered when empty.
        moments: what begins at which second, instead of seconds.
    """
    found = []
    for name, metric in (("TTFT", "ttft"), ("E2E", "e2e")):
        curves = {
            policy: zip(_PLACES, run[f"{metric}_curve_ms"], strict=False) for policy, run in runs.items()
        }
        spread = {policy: [*curve] for policy, curve in curves.items()}
        found.append(Panel(f"{name} by percentile", "percentile", "ms", spread, _PERCENTILES, _TICKS))
    for name, metric in (("TTFT", "ttft"), ("E2E", "e2e")):
        times = {
            policy: [(at * run["bin_s"], ms) for at, ms in enumerate(run[f"{metric}_over_time_ms"])]
            for policy, run in runs.items()
        }
        seconds = {at_s: f"{at_s:.0f} s" for at_s, _ in next(iter(times.values()))}
        labels = {**seconds, **moments} if moments else {}
        said = "phase" if moments else "s, first seed"
        found.append(Panel(f"{name} p95 over time", said, "ms", times, labels, [*(moments or ())]))
    for name, column in (("Requests", "share"), ("Busy time", "busy_share")):
        bars = {
            policy: [(at, 100.0 * share) for at, share in enumerate(run[column])]
            for policy, run in runs.items()
        }
        count = max(map(len, bars.values()))
        names: dict[float, str] = dict(enumerate(replicas or map(str, range(1, count + 1))))
        ticks = [*names][:: 1 + sum(map(len, names.values())) // _NAMES_CHARACTERS]
        if count:
            found.append(Panel(f"{name} by replica", "replica", "%", bars, names, ticks, drawn="bars"))
    return found


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap="/" in heading)
    return table


def _figures(cell: Values, seeds: int) -> Table:
    mean = f"mean of {seeds} seeds, " if seeds > 1 else ""
    offered = f"{cell['load']['input_tokens_per_s']:,.0f} input tokens/s"
    table = _table(
        f"{cell['name']}: {mean}first {cell['warmup_s']:,.0f} s dropped as warm-up, {offered}",
        *(f"{name} ms\np50 / p95 / p99" for name in ("TTFT", "E2E", "ITL")),
        *("hits\nexpected / true", "hottest", "client lag\np95 ms", "failed", "saturated"),
    )
    for policy in sorted(cell["policies"], key=lambda p: p["e2e_ms"]["p95"]):
        table.add_row(
            f"({policy['name']})" if policy["role"] == "yardstick" else policy["name"],
            *(" / ".join(_number(policy[metric][q]) for q in ("p50", "p95", "p99")) for metric in METRICS),
            f"{share_text(policy['believed_hit_share'])} / {share_text(policy['true_hit_share'])}",
            share_text(policy["hottest_share"]),
            _number(policy["slip_ms"]["p95"]),
            str(policy["errors"]),
            f"{policy['saturated_seeds']}/{seeds}" if policy["saturated_seeds"] else "-",
            style="bold" if policy["role"] == "candidate" else "",
        )
    return table


def _comparisons(cell: Values, candidate: str) -> Table:
    table = _table(
        f"Against {candidate}: above 0 % is higher (worse); 95 % intervals; * may be the best (Hsu)",
        *(comparison["label"] for comparison in cell["comparisons"]),
    )
    for policy in cell["policies"]:
        name = policy["name"]
        table.add_row(name, *(Text(_compared(name, candidate, each)) for each in cell["comparisons"]))
    return table


def _compared(name: str, candidate: str, comparison: Values) -> str:
    found = comparison["to_candidate"].get(name)
    if found is None:
        return "-"
    mark = "*" if comparison["to_best"].get(name, {}).get("possibly_best") else " "
    if name == candidate:
        return f"0 %{mark}"
    interval = f" [{change(found['low'])}, {change(found['high'])}]" if math.isfinite(found["low"]) else ""
    return f"{change(found['ratio'])}{interval.replace(' %', '')}{mark}"


def _sweeps(document: Values) -> dict[str, list[Values]]:
    """Group the cells that are one load at several paces, the slowest first."""
    found: dict[str, list[Values]] = {}
    for cell in document["cells"]:
        load, at, _ = cell["name"].rpartition(" x ")
        if at:
            found.setdefault(load, []).append(cell)
    return {load: cells for load, cells in found.items() if len(cells) > 1}


def _by_policy(cells: Sequence[Values]) -> dict[str, list[tuple[float, Values]]]:
    """List each policy's figures by pace."""
    found: dict[str, list[tuple[float, Values]]] = {}
    for cell in cells:
        for policy in cell["policies"]:
            found.setdefault(policy["name"], []).append((cell["load"]["load"], policy))
    return found


def knee(runs: Sequence[tuple[float, Values]], limit_ms: float) -> float:
    """Return the highest pace up to which no seed saturates and E2E p95 is within a limit, NaN for none."""
    found = math.nan
    for pace, run in runs:
        if run["saturated_seeds"] or not run["e2e_ms"]["p95"] <= limit_ms:
            break
        found = pace
    return found


def _knee(load: str, cells: Sequence[Values]) -> Table:
    limit_ms = _KNEE_TIMES * min(policy["e2e_ms"]["p95"] for policy in cells[0]["policies"])
    policies = _by_policy(cells)
    title = f"{load}: E2E p95 ms by pace, * saturated; knee: up to it none is, nor over {limit_ms:,.0f} ms"
    table = _table(
        f"{title}, {_KNEE_TIMES:g} times the least at the first pace",
        "knee",
        *(f"{cell['load']['load']:g}" for cell in cells),
    )
    knees = {name: knee(runs, limit_ms) for name, runs in policies.items()}
    for name, at in sorted(knees.items(), key=lambda item: -item[1] if item[1] > 0 else 0.0):
        p95s = (
            _number(run["e2e_ms"]["p95"]) + "*" * bool(run["saturated_seeds"]) for _, run in policies[name]
        )
        table.add_row(name, f"{at:g}" if at > 0 else "-", *p95s)
    return table


def _by_load(cells: Sequence[Values]) -> list[Panel]:
    return [
        Panel(
            f"{name} p95",
            "pace",
            "ms",
            {
                policy: [(pace, run[metric]["p95"]) for pace, run in runs]
                for policy, runs in _by_policy(cells).items()
            },
        )
        for name, metric in (("TTFT", "ttft_ms"), ("E2E", "e2e_ms"))
    ]


def _tuned(tuning: Sequence[Values]) -> Table:
    table = _table(
        "Tuned weights: loads that are not judged on", "tried", "gain on the tuning load", "weights"
    )
    for row in tuning:
        gain = 100.0 * (1.0 - math.exp(row["objective"] - row["objective_at_defaults"]))
        weights = ", ".join(f"{name} {value:.4g}" for name, value in row["weights"].items())
        table.add_row(row["policy"], str(row["tried"]), f"{gain:.1f} %", weights)
    return table


def change(ratio: float) -> str:
    """Format a ratio as a signed per cent: ``-12 %``, ``+3.4 %``."""
    percent = 100.0 * (ratio - 1.0)
    if not math.isfinite(percent):
        return "unknown"
    digits = 1 if abs(percent) < 10 else 0
    return f"{percent:+.{digits}f} %".replace("-0.0 %", "0 %").replace("+0.0 %", "0 %")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


# ---- sentences ------------------------------------------------------------------------------------------


def headline(document: Values) -> list[str]:
    """Say on how many loads the candidate is lowest, level or behind, by each metric of the conclusions."""
    candidate, loads, said = document["candidate"], [cell["name"] for cell in document["cells"]], []
    for comparisons in list(zip(*(cell["comparisons"] for cell in document["cells"]), strict=True))[:2]:
        standings = Counter(_standing(comparison, candidate) for comparison in comparisons)
        ordered = sorted(standings.most_common(), key=lambda item: item[0] != _LOWEST)
        parts = [f"{standing} on {count}" for standing, count in ordered]
        parts[0] += f" of {len(loads)} loads"
        if len(loads) == 1:
            parts = [f"{ordered[0][0]} on {loads[0]}"]
        named = [f"{load} " for load in loads] if len(loads) > 1 else [""]
        rivals = (_lowest_rival(comparison, candidate)[1] for comparison in comparisons)
        against = [f"{load}{_against(rival)}" for load, rival in zip(named, rivals, strict=True) if rival]
        intervals = f" Against the lowest of the others: {'; '.join(against)}." if against else ""
        said.append(f"{comparisons[0]['label']}: {candidate} is {', '.join(parts)}.{intervals}")
    return said


def _standing(comparison: Values, candidate: str) -> str:
    name, rival = _lowest_rival(comparison, candidate)
    if not name:
        return "not to be judged by so few runs"
    mine = comparison["to_best"][candidate]
    # An interval that is printed and holds 0 is not overruled.
    if mine["high"] <= 1.0 and rival["low"] > 1.0:
        return _LOWEST
    return f"{'level with' if mine['possibly_best'] else 'behind'} {name}"


def conclusion(comparisons: Sequence[Values], candidate: str, margin: float) -> list[str]:
    """Say of one load how the candidate stands against the best of the others.

    Args:
        comparisons: of the load's policies; the first two are concluded from.
        candidate: the policy that is judged.
        margin: what a policy may be worse by and still count as not inferior, e.g. 0.05.
    """
    out = [
        f"{comparison['label']}: {_verdict(comparison, candidate, margin)}."
        for comparison in comparisons[:2]
        if len(comparison["to_candidate"]) > 1
    ]
    first = comparisons[0]
    if first["unit"] == "request":
        out.append("The intervals hold within this recorded trace; they say nothing of other days.")
    elif first["to_best"] and first["units"] < ENOUGH_UNITS:
        out.append(
            f"With {first['units']} seeds intervals are indicative only; {ENOUGH_UNITS} or more are due."
        )
    return out


def _lowest_rival(comparison: Values, candidate: str) -> tuple[str, Values]:
    rivals = {name: comparison["to_candidate"][name] for name in comparison["to_best"] if name != candidate}
    return min(rivals.items(), key=lambda item: item[1]["ratio"], default=("", {}))


def _against(rival: Values) -> str:
    """Format the candidate's figure over a rival's, with its interval."""
    return f"{change(1 / rival['ratio'])} [{change(1 / rival['high'])}, {change(1 / rival['low'])}]"


def _verdict(comparison: Values, candidate: str, margin: float) -> str:
    name, rival = _lowest_rival(comparison, candidate)
    if not name:
        return f"{comparison['units']} {comparison['unit']}(s) cannot carry an interval; nothing is concluded"
    lead = f"{candidate} against {name}, the lowest of the others, {_against(rival)}"
    mine = comparison["to_best"][candidate]
    if mine["high"] <= 1.0:
        return f"{lead}; lower than every other policy"
    if mine["high"] <= 1.0 + margin:
        return f"{lead}; not inferior to any by more than {100 * margin:g} %: at most {change(mine['high'])}"
    if not mine["possibly_best"]:
        return f"{lead}; not the best"
    return f"{lead}; no difference from the best is shown, nor non-inferiority within {100 * margin:g} %"


def lesson_sentence(policy: str, lessons: Sequence[Lesson]) -> str:
    """Say how a policy learned in its runs, each begun without a model."""
    after = [lesson for lesson in lessons if not math.isnan(lesson.first_model_s)]
    firsts = sorted(lesson.first_model_s for lesson in after)
    rounds = sum(len(lesson.rounds) for lesson in lessons)
    passed = sum(lesson.passed for lesson in lessons)
    start = f"{policy} learned within each run: of {rounds} models its gate let {passed} through"
    if not firsts:
        return f"{start}, and its fallback decided throughout"
    where = f"{firsts[0]:,.0f} to {firsts[-1]:,.0f} s, in {len(after)} of {len(lessons)} runs"
    decided = ", ".join(
        f"{text} {sum(lesson.share(word) for lesson in after) / len(after):.1%}"
        for word, text in _DECIDED_BY.items()
    )
    return f"{start}; the first after {where}; then decided {decided}"
