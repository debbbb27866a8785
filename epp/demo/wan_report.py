"""Tables of the demonstration with long links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.demo.wan_load import Sample


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a region takes by itself.

    Attributes:
        engine_ms: the replica's own TTFT, without any distance.
        warm_ms: TTFT over one connection that has got going, directly to the replica.
    """

    engine_ms: float
    warm_ms: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One way under one loss.

    Attributes:
        way: said in words.
        loss: share of packets lost in each direction.
        samples: requests.
        cold: share of the requests that were the first on their connection.
        opened: connections opened to replicas or relays.
        cpu_ms: CPU time of the Envoys per request.
    """

    way: str
    loss: float
    samples: Sequence[Sample]
    cold: float
    opened: int
    cpu_ms: float


def table(cells: Sequence[Cell], yardsticks: Mapping[str, Yardstick]) -> Table:
    """TTFT by way, loss and region, and its network part beside the warm figure."""
    found = Table(title="72 KB prompts, engine's own time included in TTFT and left out of network")
    for title in ("way", "loss", "region"):
        found.add_column(title)
    for title in ("requests", "TTFT p50", "p95", "network p50", "p95", "p95 / warm", "cold", "opened", "CPU"):
        found.add_column(title, justify="right")
    for cell in cells:
        totals = (f"{cell.cold:.0%}", str(cell.opened), f"{cell.cpu_ms:.1f} ms")
        for place, region in enumerate(yardsticks):
            ttft = np.array([s.ttft_ms for s in cell.samples if s.region == region and s.status == 200])
            if not len(ttft):
                continue
            stick = yardsticks[region]
            p50, p95 = np.percentile(ttft, [50, 95])
            network50, network95 = p50 - stick.engine_ms, p95 - stick.engine_ms
            found.add_row(
                *((cell.way, f"{cell.loss:.1%}") if not place else ("", "")),
                region, str(len(ttft)), f"{p50:.0f}", f"{p95:.0f}", f"{network50:.0f}", f"{network95:.0f}",
                f"{network95 / (stick.warm_ms - stick.engine_ms):.2f}",
                *(totals if not place else ("", "", "")),
            )  # fmt: skip
    return found


def yardstick_table(yardsticks: Mapping[str, Yardstick], rtt_ms: Mapping[str, float]) -> Table:
    """What regions take by themselves."""
    found = Table(title="one warm connection, directly to the replica")
    for title in ("region", "round trip", "engine alone", "warm TTFT", "network part"):
        found.add_column(title, justify="left" if title == "region" else "right")
    for region, stick in yardsticks.items():
        values = (rtt_ms[region], stick.engine_ms, stick.warm_ms, stick.warm_ms - stick.engine_ms)
        found.add_row(region, *(f"{value:.0f} ms" for value in values))
    return found


@dataclass(frozen=True, slots=True)
class Fault:
    """What users saw of a fault.

    Attributes:
        way: said in words.
        what: the fault.
        phases: requests by when they began: before, during, after.
    """

    way: str
    what: str
    phases: Mapping[str, Sequence[Sample]]


def fault_table(faults: Sequence[Fault], region: str) -> Table:
    """Requests, failures, the slowest, and how many the region itself served."""
    found = Table(title=f"faults in {region}; requests to whichever region the picker takes")
    titles = (
        "way", "fault", "begun", "requests", "failed", f"by {region}", "TTFT p50", "slowest",
        "slowest failed",
    )  # fmt: skip
    for place, title in enumerate(titles):
        found.add_column(title, justify="left" if place < 3 else "right")
    for fault in faults:
        for place, (phase, samples) in enumerate(fault.phases.items()):
            good = [s for s in samples if s.status == 200 and s.complete]
            bad = [s for s in samples if not (s.status == 200 and s.complete)]
            ttft = sorted(s.ttft_ms for s in good)
            found.add_row(
                *((fault.way, fault.what) if not place else ("", "")),
                phase, str(len(samples)), str(len(bad)), str(sum(s.served == region for s in good)),
                f"{ttft[len(ttft) // 2]:.0f} ms" if ttft else "-",
                f"{ttft[-1]:.0f} ms" if ttft else "-",
                f"{max(s.ttft_ms for s in bad) / 1e3:.1f} s" if bad else "-",
            )  # fmt: skip
    return found
