"""Prefill and decode apart: pairs that are chosen together, llm-d's decode worker first, and no pairs at all.

Eight workers (`epp_lab.compare.fleets.pd_fleet`). Loads come from the folder of ``EPP_TRACES``: Mooncake's
conversations, as many windows as seeds, which overlap; and recorded sessions of Claude Code in closed loop.
The knee of a load is the largest pace, or number of sessions, with a TTFT p95 of at most three times that at
half of it, for llm-d's way at 512 tokens with the workers that fit and links of 100 Gb/s, under a seed that
is not judged (1020). Cells, knees and entries were written down before a weight was tried on any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp_lab.compare.fleets import fleet_named
from epp_lab.compare.llmd_stages import prefix_decided
from epp_lab.compare.plan import Source
from epp_lab.experiment import CellRun, Experiment, ratio_text
from epp_lab.experiments.queue import agents, trace_file
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.stats import Floats
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import WindowResult
    from epp_lab.sim.scenario import FleetSpec

SEED = 2600
#: How long requests are sent; the first part does not count.
WINDOW_S, WARMUP_S = 100.0, 30.0
_MAX_PROMPT_TOKENS = 64_000
#: By load and model, in paces of Mooncake's trace and in sessions.
KNEES = {"conversation 8b": 4.8, "conversation 70b": 2.3, "agents 8b": 30.0, "agents 70b": 24.0}
#: Workers that fit conversations, and agents, whose contexts want room.
FITTING, AGENTS, SHORT = "5p3d", "4p4d", "1p7d"


class Load(NamedTuple):
    """A load by its name, what part of its knee it asks for, the workers, and what it is set beside."""

    name: str
    fraction: float
    workers: str
    gbps: int = 100
    beside: str = ""

    @property
    def model(self) -> str:
        """Which of the models is served."""
        return self.name.rpartition(" ")[2]


def _cells(model: str) -> dict[str, Load]:
    chat, turns = f"conversation {model}", f"agents {model}"
    cells = {f"{chat} {gbps}g": Load(chat, 0.9, FITTING, gbps) for gbps in (400, 100, 25)}
    cells[f"{turns} 100g"] = Load(turns, 0.9, AGENTS)
    # Loads that the decode workers carry alone, and the same where nothing is short.
    for name, fraction, workers, gbps in (
        ("short prefill", 0.75, SHORT, 100),
        ("full links", 0.33, FITTING, 10),
    ):
        cells[f"{chat} {name}"] = Load(chat, fraction, workers, gbps, f"{chat} beside {name}")
        cells[f"{chat} beside {name}"] = Load(chat, fraction, FITTING, 100)
    return cells


CELLS: Mapping[str, Load] = _cells("8b") | _cells("70b")
#: llm-d's thresholds, of which the best of each cell counts.
THRESHOLDS = ("512", "2048", "8192")
OURS, ALONE, UNDIVIDED = "gorgo-ms", "whole on decode workers", "undivided"
ENTRIES = (OURS, *THRESHOLDS, ALONE, UNDIVIDED)


def load(cell: Load, seed: int) -> tuple[Sequence[TraceRequest], WindowOptions]:
    """Make a load's requests, and how they are sent."""
    amount = KNEES[cell.name] * cell.fraction
    if cell.name.startswith("agents"):
        return agents("claude_code_sessions", round(amount), seed, WINDOW_S), WindowOptions()
    return conversation(amount, seed)


def conversation(pace: float, seed: int) -> tuple[Sequence[TraceRequest], WindowOptions]:
    """Make a window of Mooncake's conversations at a pace."""
    stretch_s = WINDOW_S * pace
    from_s = (3_500.0 - stretch_s) * keyed_uniform(seed, "window", "from")
    trace = str(trace_file("mooncake_conversation"))
    source = Source(trace=trace, from_s=from_s, until_s=stretch_s, max_prompt_tokens=_MAX_PROMPT_TOKENS)
    return source.requests(seed), WindowOptions(time_scale=1.0 / pace)


def fleet(cell: Load, entry: str) -> FleetSpec:
    """Return the workers that an entry uses."""
    prefill, decode = (int(part) for part in cell.workers.rstrip("d").split("p"))
    if entry in (ALONE, UNDIVIDED):
        return fleet_named(f"pd-{cell.model}-{decode if entry == ALONE else prefill + decode}")
    return fleet_named(f"pd-{cell.model}-{cell.workers}-{cell.gbps}g")


def measures(result: WindowResult) -> dict[str, float]:
    """Sum up the requests that were due after the warm-up."""
    due = [one for one in result.requests if WARMUP_S * 1e3 <= one.intended_ms <= WINDOW_S * 1e3]
    done = [one for one in due if one.ok]
    ttft_ms, itl_ms = (
        np.array([getattr(one, name) for one in done], float) for name in ("ttft_ms", "itl_ms")
    )
    e2e_ms = [one.e2e_ms for one in done]
    return {
        "TTFT p50 ms": float(np.percentile(ttft_ms, 50)),
        "TTFT p95 ms": float(np.percentile(ttft_ms, 95)),
        "E2E p95 ms": float(np.percentile(e2e_ms, 95)),
        "ITL p95 ms": float(np.nanpercentile(itl_ms, 95)),  # of answers of one token there is none
        "apart %": 100.0 * float(np.mean([bool(one.prefilled_at) for one in done])),
        "failed": float(len(due) - len(done)),
    }


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load with one way to choose workers."""
    asked = CELLS[cell]
    requests, options = load(asked, SEED + seed)
    by_threshold = entry in THRESHOLDS
    policy = (
        policy_named("llm-d-stages", prefix_decided(float(entry))) if by_threshold else policy_named(OURS)
    )
    return measures(run_window(requests, fleet(asked, entry), policy, seed=SEED + seed, options=options))


def goals(runs: Sequence[CellRun]) -> str:
    """Set ours beside the best of its rivals in each cell, and beside itself where nothing is short."""
    found = {run.key: run for run in runs}
    seeds = sorted({run.seed for run in runs})

    def logs(cell: str, entry: str, measure: str) -> Floats:
        known = [found.get((cell, entry, seed)) for seed in seeds]
        return np.array([math.log(run.value(measure)) if run else math.nan for run in known])

    def best(cell: str, rivals: Sequence[str], measure: str) -> str:
        ran = [entry for entry in rivals if (cell, entry, seeds[0]) in found]
        if not ran:
            return ""
        least = min(ran, key=lambda entry: float(np.nanmean(logs(cell, entry, measure))))
        return f"{ratio_text(logs(cell, OURS, measure) - logs(cell, least, measure))} ({least})"

    heads = (
        "cell",
        "TTFT p95 / best threshold",
        "E2E p95 / best threshold or whole",
        "TTFT p95 / nothing short",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in dict.fromkeys(run.cell for run in runs):
        row = [cell, best(cell, THRESHOLDS, "TTFT p95 ms"), best(cell, (*THRESHOLDS, ALONE), "E2E p95 ms")]
        beside = CELLS[cell].beside
        row.append(
            ratio_text(logs(cell, OURS, "TTFT p95 ms") - logs(beside, OURS, "TTFT p95 ms")) if beside else ""
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="What do pairs of prefill and decode workers gain that are chosen together?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    seeds=8,
    minutes=10,
    summary=goals,
)
