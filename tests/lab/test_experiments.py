"""Each experiment runs: one seed of one small cell."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from epp.lab import conditions
from epp.lab.experiment import Experiment, execute
from epp.lab.experiments import lodestar, wan

if TYPE_CHECKING:
    from pathlib import Path

#: Cell and entries of the smoke run.
SMALL: dict[str, tuple[str, tuple[str, ...]]] = {
    "policies": (
        "mooncake / three regions / one fails",
        ("gorgo-ms tuned", "least-load 30 s", "gorgo-hillclimb", "no network term"),
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
    "gorgo-paper": ("Apr 7 ts 3", ("gorgo", "least-request")),
    "network": ("busy / 200 ms / changing", ("gorgo", "no queue term")),
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
    first, last = (
        {name: run[key] for name, run in runs.items() if name != "nearest"}
        for key in ("TTFT p50 ms", "E2E p50 s")
    )
    assert min(first, key=first.__getitem__) == "gorgo-proxy"
    assert min(first["least-load"], first["prefix-trie"]) > 1.3 * first["gorgo"]
    # Nine requests at one replica decode at 16 ms: who keeps them there answers first and ends last.
    assert max(last, key=last.__getitem__) == "gorgo-proxy"
    assert runs["gorgo-proxy"]["ITL p50 ms"] == pytest.approx(16.1, abs=0.7)
    assert runs["least-load"]["ITL p50 ms"] == pytest.approx(12.5, abs=0.7)
