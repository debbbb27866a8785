"""`epp lab compare` and `epp lab trace` end to end, on loads of seconds, simulated and over HTTP."""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from epp import __version__
from epp.errors import EppError
from epp_lab.compare import command, simulate, trace_stats
from epp_lab.compare.measure import Figures, Quantiles
from epp_lab.compare.plan import TUNING_SEED, PlanCell, Source
from epp_lab.compare.report import conclusion, headline, knee
from epp_lab.compare.results import compare_policies
from epp_lab.compare.simulate import Outcome, PolicyChoice, objective, tune
from epp_lab.sim.scenario import FleetSpec, parse_fleet
from epp_lab.workloads.registry import WORKLOADS
from tests.kit.replicas import MODEL, quick_config, replicas_in_thread

if TYPE_CHECKING:
    from pathlib import Path

FLEET = "l40s-x2@20,l40s-x2@100"
SMALL = ("--workload", "demo", "--seconds", "8", "--fleet", FLEET)
NAN = math.nan


def parsed(*words: str, module: Any = command) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(words)


def run(*words: str, module: Any = command) -> int:
    status: int = module.run(parsed(*words, module=module))
    return status


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    return found


def demo_trace(path: Path) -> str:
    path.write_bytes(msgspec.json.Encoder().encode_lines(WORKLOADS["demo"].make(3)))
    return str(path)


class TestKnee:
    def test_paces_are_run_beside_each_other_and_each_policy_has_its_knee(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--policy", "gorgo-ms,random", "--seeds", "1", "--warmup", "0", "--workers", "1")
        assert run(*SMALL, *words, "--loads", "0.5..3", "--out", str(tmp_path)) == 0
        document = results(tmp_path)
        assert [cell["load"]["load"] for cell in document["cells"]] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
        shown = capsys.readouterr().out
        assert re.search(r"knee .* 0.5 .* 1 .* 1.5 .* 2 .* 2.5 .* 3 ", shown)
        assert re.search(r"\b(random|gorgo-ms) +│ +(-|0.5|[123]|[12].5) │", shown)
        assert "latency by load" in (tmp_path / "report.html").read_text()

    @pytest.mark.parametrize(
        ("p95_ms", "saturated", "expected"),
        [
            ([100.0, 150.0, 200.0, 201.0, 120.0], [0] * 5, 3.0),  # what comes back after it is no knee
            ([100.0, 110.0, 120.0, 130.0, 140.0], [0, 0, 1, 0, 0], 2.0),
            ([100.0, 110.0, 120.0, 130.0, 140.0], [0] * 5, 5.0),
            ([100.0, NAN, 120.0, 130.0, 140.0], [0] * 5, 1.0),
            ([250.0, 110.0, 120.0, 130.0, 140.0], [0] * 5, NAN),  # bad from the first
        ],
    )
    def test_the_knee_is_the_last_pace_before_saturation_or_the_limit(
        self, p95_ms: list[float], saturated: list[int], expected: float
    ) -> None:
        runs = [
            (float(at), {"saturated_seeds": seeds, "e2e_ms": {"p95": ms}})
            for at, (ms, seeds) in enumerate(zip(p95_ms, saturated, strict=True), 1)
        ]
        assert knee(runs, 200.0) == pytest.approx(expected, nan_ok=True)


class TestSimulated:
    def test_events_on_off_and_lossy_are_rows_of_their_own(self, tmp_path: Path) -> None:
        common = (*SMALL, "--policy", "gorgo-ms", "--seeds", "1", "--workers", "1", "--out", str(tmp_path))
        assert run(*common, "--events", "off,on,lossy") == 0
        (cell,) = results(tmp_path)["cells"]
        names = [one["name"] for one in cell["policies"]]
        assert names == ["gorgo-ms", "gorgo-ms, events on", "gorgo-ms, events lossy"]

    def test_results_are_the_same_bytes_however_many_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
        common = (*SMALL, "--policy", "gorgo,random,greedy-oracle-total", "--seeds", "8")
        for name, workers in (("a", "1"), ("b", "2")):
            assert run(*common, "--workers", workers, "--out", str(tmp_path / name)) == 0
            first = re.findall(r"demo, seed 1: (\S+): TTFT p95 [\d,]+ ms", capsys.readouterr().err)
            assert sorted(first) == ["gorgo", "greedy-oracle-total", "random"]
        for name in ("results.json", "report.html"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        found = results(tmp_path / "a")
        assert (found["candidate"], found["seeds"]) == ("gorgo", [1, 2, 3, 4, 5, 6, 7, 8])
        (cell,) = found["cells"]
        assert [p["role"] for p in cell["policies"]] == ["candidate", "baseline", "yardstick"]
        assert all(len(p["per_seed"]) == 8 for p in cell["policies"])
        e2e = next(c for c in cell["comparisons"] if c["label"] == "E2E p95")
        assert (e2e["unit"], e2e["units"]) == ("seed", 8)
        assert e2e["to_candidate"]["random"]["ratio"] > 1.0
        assert set(e2e["to_best"]) == {"gorgo", "random"}
        said = " ".join(cell["conclusion"])
        assert "gorgo against random" in said
        assert "indicative only" in said
        page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
        assert "dropped as warm-up" in page
        assert not re.search(r"@import|url\(|src=|href=|\bnan\b", page)
        assert page.count("data-chart=") == 6
        assert "TTFT p95: gorgo is the lowest on demo. Against the lowest of the others: -" in page
        made = found["made"]
        assert (made["version"], made["date"]) == (__version__, "1970-01-02T00:00:00+00:00")
        assert all(made[word] in page for word in ("version", "commit", "date"))

    def test_a_trace_is_judged_within_itself(self, tmp_path: Path) -> None:
        path, out = demo_trace(tmp_path / "own.jsonl"), tmp_path / "out"
        words = ("--trace", path, "--fleet", FLEET, "--policy", "gorgo,random", "--out", str(out))
        assert run(*words) == 0
        (cell,) = results(out)["cells"]
        assert (cell["name"], cell["comparisons"][0]["unit"]) == ("own", "request")
        assert cell["comparisons"][0]["to_best"]
        assert "within this recorded trace" in " ".join(cell["conclusion"])

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ((), "--workload or --trace"),
            (("--workload", "demo", "--policy", "gorgi"), "unknown policy"),
            (("--workload", "demo", "--policy", "random", "--candidate", "gorgo"), "not among"),
            ((*SMALL, "--policy", "random", "--seeds", "1", "--warmup", "900"), "leaves nothing to judge of"),
            (("--trace", "nowhere.jsonl", "--policy", "random"), "nowhere.jsonl"),
            (("--workload", "demo", "--over-http", "http://x", "--tune", "3"), "simulated"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_words(
        self, words: tuple[str, ...], says: str, tmp_path: Path
    ) -> None:
        with pytest.raises(EppError, match=says):
            run(*words, "--out", str(tmp_path / "out"))

    def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(EppError, match="is no folder that can be written to"):
            run("--workload", "demo", "--policy", "random", "--out", str(tmp_path / "file" / "out"))


class TestOverHttp:
    SHORT = ("--workload", "demo", "--seconds", "2", "--load", "4", "--warmup", "0", "--model", MODEL)

    def test_gateways_are_compared_and_one_that_answers_nothing_costs_the_others_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with replicas_in_thread(*map(quick_config, ("r0", "r1"))) as (one, two):
            gateways = (f"off={one}/off", f"g0={one}", f"g1={two}")
            live = [word for gateway in gateways for word in ("--over-http", gateway)]
            assert run(*self.SHORT, *live, "--out", str(tmp_path)) == 1
        assert "demo: off answered no request: HTTP 404" in capsys.readouterr().err
        found = results(tmp_path)
        assert (found["candidate"], found["fleet"]) == ("g0", [])
        (cell,) = found["cells"]
        assert [p["name"] for p in cell["policies"]] == ["g0", "g1"]
        assert all(p["errors"] == 0 and p["per_seed"][0]["requests"] >= 10 for p in cell["policies"])
        assert cell["comparisons"][0]["unit"] == "request"
        assert cell["policies"][0]["believed_hit_share"] is None
        assert "one after the other" in (tmp_path / "report.html").read_text(encoding="utf-8")

    def test_a_gateway_that_is_not_there_is_named_before_another_is_driven(self, tmp_path: Path) -> None:
        with replicas_in_thread(quick_config("r0")) as (url,):
            words = (*self.SHORT, "--over-http", f"here={url}", "--over-http", "gone=http://127.0.0.1:9")
            with pytest.raises(EppError, match="gone does not answer, and nothing was sent to any: Client"):
                run(*words, "--out", str(tmp_path))


def made(ttft: float = 500.0, e2e: float = 2000.0, errors: int = 0) -> Figures:
    def q(value: float) -> Quantiles:
        return Quantiles(value, value, value, value)

    return Figures(
        requests=100, errors=errors, ttft_ms=q(ttft), e2e_ms=q(e2e), itl_ms=q(9.0), slip_ms=q(0.0),
        believed_hit_share=NAN, true_hit_share=NAN, share=(1.0,), hottest_share=1.0, busy_share=(),
        unanswered_share=0.0, input_tokens_per_s=1.0, saturated=False, ttft_curve_ms=(), e2e_curve_ms=(),
        ttft_over_time_ms=(), e2e_over_time_ms=(), share_over_time=[], bin_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("factors", "noise", "words"),
    [
        ({"me": 1.0, "a": 1.3, "b": 1.5}, 0.02, "E2E p95: me against a, the lowest of the others, -2"),
        ({"me": 1.0, "a": 1.3, "b": 1.5}, 0.02, "; lower than every other policy."),
        ({"me": 1.0, "a": 1.0, "b": 1.5}, 0.02, "not inferior to any by more than 5 %: at most"),
        ({"me": 1.0, "a": 1.0}, 0.4, "no difference from the best is shown, nor non-inferiority within 5 %"),
        ({"me": 1.3, "a": 1.0, "oracle": 0.5}, 0.02, "me against a, the lowest of the others"),
        ({"me": 1.3, "a": 1.0}, 0.02, "; not the best."),
    ],
)
def test_a_conclusion_says_what_intervals_allow(factors: dict[str, float], noise: float, words: str) -> None:
    """Policies' latencies are the candidate's times a factor, with noise of their own."""
    rng = np.random.default_rng(1)
    common = rng.normal(0, 0.2, 20)
    roles = dict.fromkeys(factors, "baseline") | {"me": "candidate", "oracle": "yardstick"}
    outcomes = {
        name: [
            Outcome(made(float(500 * f * np.exp(c + e)), float(2000 * f * np.exp(c + e))), {})
            for c, e in zip(common, rng.normal(0, noise, 20), strict=True)
        ]
        for name, f in factors.items()
    }
    roles = {name: roles[name] for name in factors}
    comparisons = compare_policies(outcomes, roles, by_request=False)
    assert words in "\n".join(conclusion(comparisons, "me", 0.05))


def test_a_headline_counts_the_loads_and_claims_nothing_that_an_interval_denies() -> None:
    def comparison(high: float, low: float, *, best: bool) -> dict[str, Any]:
        rival = {"ratio": 1.2, "low": low, "high": 1.5}
        mine = {"high": high, "possibly_best": best}
        return {
            "label": "TTFT p95",
            "to_candidate": {"me": {"ratio": 1.0, "low": 1.0, "high": 1.0}, "other": rival},
            "to_best": {"me": mine, "other": {"high": 1.0, "possibly_best": True}},
        }

    found = [
        comparison(1.0, 1.1, best=True),
        comparison(1.0, 0.9, best=True),  # its own interval holds 0
        comparison(1.2, 0.9, best=False),
        {"label": "TTFT p95", "to_candidate": {}, "to_best": {}},
    ]
    cells = [{"name": f"load{at}", "comparisons": [each]} for at, each in enumerate(found)]
    (sentence,) = headline({"candidate": "me", "cells": cells})
    assert sentence.startswith(
        "TTFT p95: me is the lowest on 1 of 4 loads, level with other on 1, behind other on 1, "
        "not to be judged by so few runs on 1. Against the lowest of the others: load0 -17 % [-33 %, -9.1 %]; "
    )


class TestTuning:
    def test_the_objective_prices_both_latencies_and_failures(self) -> None:
        assert objective(made(e2e=1000.0)) < objective(made())
        assert objective(made(ttft=250.0, e2e=8000.0)) > objective(
            made()
        )  # half the TTFT, four times the E2E
        assert objective(made(errors=1)) == pytest.approx(objective(made()) + 0.1)
        assert objective(made(ttft=NAN, e2e=NAN)) == math.inf

    def test_a_search_on_a_known_surface_finds_its_valley_on_other_loads(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: set[tuple[int, Source]] = set()

        def surface(cell: PlanCell, _: FleetSpec, policy: PolicyChoice, seed: int) -> Outcome:
            seen.add((seed, cell.source))
            weights = policy.weights
            far = abs(math.log(weights["queue_weight"] / 0.05)) + 0.1 * abs(weights["prefill_weight"] - 1.0)
            return Outcome(made(e2e=1000.0 * math.exp(far)), {})

        monkeypatch.setattr(simulate, "run_task", surface)
        tuning = Source(workload="demo", until_s=8.0)
        cell = PlanCell("c", Source(workload="demo"), tuning=tuning)
        found = tune(cell, parse_fleet(FLEET), PolicyChoice("gorgo"), 60)
        assert found.objective < found.objective_at_defaults - 0.5
        assert found.weights["queue_weight"] == pytest.approx(0.05, rel=0.6)
        assert seen == {(TUNING_SEED + i, tuning) for i in range(2)}


class TestTraceStats:
    def test_the_table_has_lengths_reuse_gaps_and_fits(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("demo", "--capacity", "10k,1M", module=trace_stats) == 0
        text = re.sub(r"\s+", " ", capsys.readouterr().out)
        for words in (
            "prompt tokens",
            "within users",
            "gaps in sessions",
            "cache of 10,000",
            "cache of 1,000,000",
        ):
            assert words in text
