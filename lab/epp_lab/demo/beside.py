"""One load, on a fresh fleet for each of several configurations of the picker: a table, and a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from epp_lab.compare.measure import figures, from_live
from epp_lab.compare.report import panels
from epp_lab.demo.example import exit_status, write_report
from epp_lab.demo.stack import Stack
from epp_lab.page import html
from epp_lab.plot import figure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.demo.stack import Replica

    #: Figures of a run, by name.
    Measures = Mapping[str, float]


@dataclass(frozen=True)
class Scene:
    """What is shown.

    Attributes:
        title: of the page.
        text: what the load is.
        replicas: the fleet.
        sections: of the picker's configuration, by what it is called; the first one is without what is shown.
        queue_wait_s: how long Envoy lets requests wait.
        measures: sums up a run.
        shown: the figures that the table has.
        verdict: what they say, in words.
        warmup_s: from when on requests count in the charts.
    """

    title: str
    text: str
    replicas: Sequence[Replica]
    sections: Mapping[str, Mapping[str, Any]]
    queue_wait_s: float
    measures: Callable[[Sequence[RequestResult]], Measures]
    shown: Sequence[str]
    verdict: Callable[[Mapping[str, Measures]], list[str]]
    warmup_s: float = 0.0


async def show(arguments: argparse.Namespace, scene: Scene, requests: Sequence[TraceRequest]) -> int:
    """Send the load once for each configuration, and print what came of it; the exit status."""
    console, out = Console(), arguments.out
    console.print(scene.text, highlight=False)
    runs: dict[str, list[RequestResult]] = {}
    for name, sections in scene.sections.items():
        console.print(f"{name} ...", highlight=False)
        policy = {"policy": {"name": arguments.policy}}
        envoy = {"queue_wait_s": scene.queue_wait_s}
        folder = out / name.replace(" ", "-")
        async with Stack(folder, scene.replicas, policy | dict(sections), envoy=envoy) as stack:
            runs[name] = await stack.send(requests)
    found = {name: scene.measures(each) for name, each in runs.items()}
    table, said = (
        Table("", *found, title="The same load, fresh fleets", title_justify="left"),
        scene.verdict(found),
    )
    for figure_name in scene.shown:
        table.add_row(figure_name, *(f"{each[figure_name]:,.3g}" for each in found.values()))
    console.print(table, *said, sep="\n", highlight=False)
    counted = np.array([request.at_ms for request in requests]) >= scene.warmup_s * 1e3
    curves = {
        name: asdict(figures(from_live(results, len(requests)), requests, counted, pace=1.0))
        for name, results in runs.items()
    }
    names = [replica.name for replica in scene.replicas]
    parts = html(scene.text), figure("The same load", panels(curves, names)), html(table)
    write_report(console, out, scene.title, parts, said)
    return exit_status(runs)
