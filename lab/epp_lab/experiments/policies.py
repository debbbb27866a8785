"""Compare policies with `gorgo-ms`: as published, with live counters, and tuned.

The paper's own baselines run in two ways: as its router has them, with engine metrics read each 30 s (source
[G]), and with metrics read as often as the fleet has it. Tuned entries have the weights of
``policy_weights.json``, found by `epp lab compare --tune` on loads that nothing is compared on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.gorgo import GorgoHillclimb
from epp_lab.compare.simulate import PolicyChoice, run_task
from epp_lab.conditions import CELLS, SEED, condition
from epp_lab.experiment import CellRun, Experiment, ratio_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.measure import Figures

CANDIDATE = "gorgo-ms"
#: Ends of entries: with the weights that were found, and engine metrics read each 30 s.
_TUNED, _RARELY = " tuned", " 30 s"
#: The same policy with other parameters or weights, by entry.
VARIANTS: Mapping[str, PolicyChoice] = {
    "mooncake learned": PolicyChoice("mooncake", params={"rates": "learned"}),
    "least-load as written 30 s": PolicyChoice("least-load", params={"queued": "requests"}),
    "least-request live": PolicyChoice("least-request", params={"counts": "live"}),
    "least-request engine 30 s": PolicyChoice("least-request", params={"counts": "engine"}),
    "prefix-cache engine 30 s": PolicyChoice("prefix-cache", params={"counts": "engine"}),
}
ENTRIES = (
    *(CANDIDATE, "gorgo", GorgoHillclimb.name, "session-affinity-hash256", "nearest", "least-load 30 s"),
    *("least-load as written 30 s", "least-request 30 s", "least-request live", "least-request engine 30 s"),
    *("prefix-cache engine 30 s", "lmetric", "mooncake learned", "preble-e2", "gorgo-ms tuned"),
    *("mooncake learned tuned", "preble-e2 tuned", "dynamo tuned", "greedy-oracle-total"),
)


@cache
def tuned_weights() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Read the weights by entry and ``load / fleet``."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(
        Path(__file__).with_name("policy_weights.json").read_text(encoding="utf-8")
    )
    return found


def choice(cell: str, entry: str) -> PolicyChoice:
    """Return the policy of an entry, with the weights that were found for a cell's load and fleet."""
    name = entry.removesuffix(_TUNED)
    chosen = VARIANTS.get(name) or PolicyChoice(name.removesuffix(_RARELY))
    if name == entry:
        return chosen
    return replace(chosen, weights=tuned_weights()[entry][cell.removesuffix(" / steady")])


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one policy on one load."""
    load, fleet = condition(cell)
    if entry.endswith(_RARELY):
        fleet = replace(fleet, scrape_interval_s=30.0)
    return shown(run_task(load, fleet, choice(cell, entry), SEED + seed).figures)


def shown(figures: Figures) -> dict[str, float]:
    """Return what tables of policies show."""
    return {
        "TTFT p50 ms": figures.ttft_ms.p50,
        "TTFT p95 ms": figures.ttft_ms.p95,
        "TTFT p99 ms": figures.ttft_ms.p99,
        "E2E p50 s": figures.e2e_ms.p50 / 1e3,
        "E2E p95 s": figures.e2e_ms.p95 / 1e3,
        "E2E p99 s": figures.e2e_ms.p99 / 1e3,
        "hit share": figures.true_hit_share,
        "hottest share": figures.hottest_share,
    }


def standings(runs: Sequence[CellRun]) -> str:
    """Set each entry beside the first: over all cells, and where the first stands worst.

    A cell is the geometric mean of its seeds. Of each figure those cells count in which all entries have it.
    """
    found = {run.key: run for run in runs}
    cells, entries = (
        list(dict.fromkeys(names)) for names in zip(*[run.key[:2] for run in runs], strict=True)
    )
    seeds = sorted({run.seed for run in runs})
    heads = ("entry", "figure", f"over `{entries[0]}`, interval over cells", "worst cell", "worst seed")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in runs[0].figures:
        values = np.array([[[found[c, e, s].value(name) for s in seeds] for c in cells] for e in entries])
        known = np.flatnonzero(np.all(values > 0, axis=(0, 2)))
        if not len(known):
            continue
        logs = np.log(values[:, known])
        for entry, own in zip(entries[1:], logs[1:] - logs[0], strict=True):
            by_cell = own.mean(axis=1)
            worst = np.argmax if name == "hit share" else np.argmin
            cell, (of, seed) = int(worst(by_cell)), np.unravel_index(worst(own), own.shape)
            ends = (
                f"{np.exp(by_cell[cell]):.3f} {cells[known[cell]]}",
                f"{np.exp(own[of, seed]):.3f} {cells[known[of]]}, {seeds[seed]}",
            )
            lines.append(f"| {entry} | {name} | {ratio_text(by_cell)} | {' | '.join(ends)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="How do policies compare with gorgo-ms?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    minutes=5,
    seeds=4,
    summary=standings,
)
