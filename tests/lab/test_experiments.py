"""Each experiment runs: one seed of one small cell."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from epp.lab import conditions
from epp.lab.experiment import Experiment, Run, execute
from epp.lab.experiments import laar, lodestar, wan

if TYPE_CHECKING:
    from pathlib import Path

#: Cell and entries of the smoke run.
SMALL: dict[str, tuple[str, tuple[str, ...]]] = {
    "policies": (
        "mooncake / three regions / one fails",
        ("gorgo-ms tuned", "least-load 30 s", "no network term"),
    ),
    "lodestar": (
        "tool calls 10 to 22 a second / hetero",
        ("lodestar", "prefix-cache-and-load", "linear model"),
    ),
    "laar": ("ja 4K", ("laar", "session-affinity")),
    "policy-knowledge": (
        "art-chat ts 1 / three regions / steady",
        ("gorgo-ms", "knows caches and answers", "oracle"),
    ),
    "wan": ("three regions", ("gorgo", "gorgo-ms")),
}


def experiment(name: str) -> Experiment:
    found: Experiment = import_module(f"epp.lab.experiments.{name.replace('-', '_')}").EXPERIMENT
    return found


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_runs_and_names_each_of_its_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "WINDOW_S", 60.0)
    monkeypatch.setattr(lodestar, "DIVISOR", 20.0)
    monkeypatch.setattr(lodestar, "REQUESTS", 1_000)
    found = experiment(name)
    cell, entries = SMALL[name]
    runs = execute(found, seeds=(0,), jobs=1, kept=tmp_path / "runs", cells=(cell,), entries=entries)
    assert [run.entry for run in runs] == list(entries)
    for run in runs:
        for measure in found.measures:
            assert measure in run.figures
        assert not math.isnan(run.value(found.measures[0])), run.entry


def test_laars_gains_and_figures_are_of_its_runs() -> None:
    seconds = {
        "laar": 1.0,
        "laar-paper": 2.0,
        "least-load": 4.0,
        "llm-d-load-aware": 8.0,
        "session-affinity": 4.0,
    }
    runs = [
        Run(cell, entry, seed, "", {"TTCA s": spent * (seed + 1), "TTCA s by 1": spent, "right by 1": 0.5})
        for cell in laar.CELLS
        for entry, spent in seconds.items()
        for seed in range(3)
    ]
    gains = ["75 % [75, 75]", "88 % [88, 88]", "75 % [75, 75]", "50 % [50, 50]", "75 % [75, 75]"]
    assert f"| 64K | {' | '.join([*gains, gains[3]])} |" in laar.gains(runs)
    figures = [ET.fromstring(text) for text in laar.plots(runs)]  # noqa: S314  # ours
    points = [len(figure.findall(".//{*}circle")) for figure in figures]
    assert points == [5 * 15, 5 * 5, 5 * 15, 6 * 15]


@pytest.mark.parametrize(
    "name",
    [
        *(f"{load} / six / one slow" for load in ("wild-chat", "siblings")),
        *(f"mooncake / three regions / {what}" for what in (*conditions.WRONG, *conditions.REPORTS)),
    ],
)
def test_a_condition_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "WINDOW_S", 40.0)
    assert experiment("policies").run(name, "least-request", 0)["TTFT p95 ms"] > 0


def test_the_cross_region_papers_tables_in_direction() -> None:
    runs = {name: wan.run("three regions", name, 1) for name in wan.TABLES}
    median = {name: figures["TTFT p50 ms"] for name, figures in runs.items() if name != "gorgo-ms"}
    assert min(median, key=median.__getitem__) == "gorgo-proxy"
    assert max(median, key=median.__getitem__) == "least-load"
