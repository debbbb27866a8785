"""Each experiment runs: one seed of one small cell."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp_lab import conditions
from epp_lab.compare.learned import LEARNERS
from epp_lab.experiment import CellRun, Experiment, execute
from epp_lab.experiments import laar, lodestar, lodestar_gate, lodestar_promotion, policies_fresh, wan
from epp_lab.experiments.policies import standings
from epp_lab.reward_model.settings import DataKeys, Gate, LearnerSettings, Network
from epp_lab.tuner.settings import Stages, TunerSettings
from epp_lab.workloads import art_chat
from epp_lab.workloads.mooncake_chat import MooncakeChat
from epp_lab.workloads.tool_agent import ToolAgent
from tests.lab.test_page import drawn

if TYPE_CHECKING:
    from pathlib import Path

#: Cell and entries of the smoke run.
SMALL: dict[str, tuple[str, tuple[str, ...]]] = {
    "policies": (
        "mooncake / three regions / steady",
        ("gorgo-ms tuned", "least-load 30 s", "gorgo-hillclimb"),
    ),
    "lodestar": (
        "tool calls 10 to 22 a second / hetero",
        ("lodestar", "prefix-threshold 20 %", "unguarded from 7 A30"),
    ),
    "lodestar-gate": ("l20-a30", ("no gate", "blind, gate")),
    "lodestar-promotion": ("6.5 a second", ("switchback",)),
    "laar": ("ja 4K", ("laar", "session-affinity")),
    "policy-knowledge": (
        "art-chat ts 1 / three regions / steady",
        ("gorgo-ms", "knows caches and answers", "oracle"),
    ),
    "gorgo-paper": ("Apr 7 ts 3", ("gorgo",)),
    "network": ("busy / 200 ms / changing", ("gorgo", "no queue term")),
    "wan": ("three regions", ("gorgo", "gorgo-ms")),
    "pickers": ("256 in 20 ms / gorgo-ms", ("1 picker", "4")),
    "events": ("a tenth lost, no replay", ("estimate alone", "with events")),
}

#: A model soon, and a trial of it soon.
QUICK = LearnerSettings(
    data=DataKeys(first=200, every=500),
    gate=Gate(on=False, held_out=50),
    network=Network(hidden=(8,), epochs=2),
    trial=TunerSettings(stages=Stages(baseline_requests=200, baseline_s=30.0)),
)


def experiment(name: str) -> Experiment:
    found: Experiment = import_module(f"epp_lab.experiments.{name.replace('-', '_')}").EXPERIMENT
    return found


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_runs_and_names_each_of_its_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "WINDOW_S", 60.0)
    monkeypatch.setattr(art_chat, "APR_7", replace(art_chat.APR_7, duration_s=120.0))
    for learner, settings in LEARNERS.items():
        small = DataKeys(first=250, every=200, recent=500, replay=250)
        gate = msgspec.structs.replace(settings.gate, held_out=83)
        network = msgspec.structs.replace(settings.network, batch=26)
        changes = {"data": small, "gate": gate, "network": network}
        monkeypatch.setitem(LEARNERS, learner, msgspec.structs.replace(settings, **changes))
    monkeypatch.setattr(lodestar, "REQUESTS", 1_000)
    monkeypatch.setattr(lodestar_gate, "DATA", DataKeys(first=400, every=400))
    monkeypatch.setattr(
        lodestar_gate, "WORKLOAD", replace(lodestar_gate.WORKLOAD, parameters=MooncakeChat(duration_s=250.0))
    )
    monkeypatch.setattr(lodestar_promotion, "LOAD", ToolAgent(duration_s=150.0, divisor=4))
    monkeypatch.setattr(lodestar_promotion, "SETTINGS", QUICK)
    found = experiment(name)
    cell, entries = SMALL[name]
    runs = execute(found, seeds=(0,), jobs=1, kept=tmp_path / "runs", cells=(cell,), entries=entries)
    assert [run.entry for run in runs] == list(entries)
    if name == "lodestar-promotion":
        assert 0.0 < runs[0].value("first model h") <= runs[0].value("split h") < 150.0 / 3600.0
        assert runs[0].value("trials") == 1.0
    for run in runs:
        for measure in found.measures:
            assert measure in run.figures
        assert not math.isnan(run.value([*found.measures, *run.figures][0])), run.entry


def test_policies_meet_a_window_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0000000,374,44" for at in range(3_500))
    monkeypatch.setenv("EPP_TRACES", str(tmp_path))
    monkeypatch.setattr(policies_fresh, "WINDOW_S", 60.0)
    monkeypatch.setattr(policies_fresh, "WARMUP_S", 10.0)
    monkeypatch.setattr(policies_fresh, "_TRACE_S", 3_400.0)
    with gzip.open(tmp_path / "azure2023_conv.csv.gz", "wt") as file:
        file.write("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    for entry in ("gorgo-ms", policies_fresh.MEAN, "sglang-cache-aware-library"):
        assert policies_fresh.run("azure / mixed / 0.7", entry, 0)["TTFT p95 ms"] > 0.0


def test_policies_stand_over_all_cells_and_at_their_worst_for_the_first() -> None:
    values = {
        ("a", "ours"): (1.0, 1.0),
        ("a", "rival"): (2.0, 8.0),
        ("b", "ours"): (4.0, 1.0),
        ("b", "rival"): (1.0, 1.0),
    }
    runs = [
        CellRun(cell, entry, seed, "", {"TTFT p95 ms": value, "hit share": value, "failed": 0.0})
        for (cell, entry), by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]
    latency, hits = standings(runs).splitlines()[2:]
    assert latency == "| rival | TTFT p95 ms | 1.414 (0.500 to 4.000) | 0.500 b | 0.250 b, 0 |"
    assert hits == "| rival | hit share | 1.414 (0.500 to 4.000) | 4.000 a | 8.000 a, 1 |"


def test_lodestars_ablations_leave_out_what_they_name() -> None:
    usual, linear, new = (
        lodestar.settings_of(entry)
        for entry in (
            lodestar.ENTRIES["lodestar"],
            lodestar.ABLATIONS["linear model"],
            lodestar.ABLATIONS["new samples alone"],
        )
    )
    assert linear.network == msgspec.structs.replace(usual.network, hidden=())
    assert new.data == msgspec.structs.replace(usual.data, replay=0)
    unfiltered = create("lodestar", lodestar.ABLATIONS["no K-filter"].params)
    assert isinstance(unfiltered, Lodestar)
    assert unfiltered.kv_saturated == 1.0


def test_laars_gains_and_figures_are_of_its_runs() -> None:
    seconds = {
        "laar": 1.0,
        "laar-paper": 2.0,
        "least-load": 4.0,
        "load-aware": 8.0,
        "session-affinity": 4.0,
    }
    runs = [
        CellRun(
            cell, entry, seed, "", {"TTCA s": spent * (seed + 1), "TTCA s by 1": spent, "right by 1": 0.5}
        )
        for cell in laar.CELLS
        for entry, spent in seconds.items()
        for seed in range(3)
    ]
    gains = ["75 % [75, 75]", "88 % [88, 88]", "75 % [75, 75]", "50 % [50, 50]", "75 % [75, 75]"]
    assert f"| 64K | {' | '.join([*gains, gains[3]])} |" in laar.gains(runs)
    points = [
        sum(len(series["points"][0]) for chart in drawn(text) for series in chart["series"])
        for text in laar.plots(runs)
    ]
    assert points == [5 * 15, 5 * 5, 5 * 15, 6 * 15]


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
    # With a picker in each region, what the first has no room for is forwarded.
    assert 0.3 < runs["local-first"]["local share"] < 1.0
    assert runs["local-first"]["E2E p50 s"] < runs["nearest"]["E2E p50 s"]
    assert runs["least-load"]["ITL p50 ms"] == pytest.approx(12.5, abs=0.7)
