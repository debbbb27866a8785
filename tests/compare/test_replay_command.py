"""`epp replay` and `epp trace stats` end to end, on loads of seconds."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from epp.errors import EppError
from epp.lab.compare import command, trace_command
from epp.lab.compare.files import load_trace, save_trace
from epp.lab.workloads.registry import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

FLEET = "l40s-x2@20,l40s-x2@100"
SMALL = ("--workload", "demo", "--seconds", "8", "--fleet", FLEET)


def run(*words: str, module: Any = command) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(words))
    return status


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    return found


class Page(HTMLParser):
    """Notes tags left open and everything that a page would fetch."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [f"{k}={v}" for k, v in attrs if k in {"src", "href", "xlink:href", "data", "action"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{k}={v}" for k, v in attrs if k in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_page(folder: Path) -> tuple[Page, str]:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.fetched == []
    assert not re.search(r"https?://|@import|url\(|<script", text)
    return page, text


class TestReplay:
    def test_results_are_the_same_bytes_however_many_workers(self, tmp_path: Path) -> None:
        common = (*SMALL, "--policy", "gorgo,random,greedy-oracle-ttft", "--seeds", "8")
        assert run(*common, "--workers", "1", "--out", str(tmp_path / "a")) == 0
        assert run(*common, "--workers", "2", "--out", str(tmp_path / "b")) == 0
        first = (tmp_path / "a" / "results.json").read_bytes()
        assert first == (tmp_path / "b" / "results.json").read_bytes()
        assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
        assert str(tmp_path).encode() not in first
        assert run(*common, "--first-seed", "9", "--out", str(tmp_path / "c")) == 0
        assert first != (tmp_path / "c" / "results.json").read_bytes()

    def test_what_was_found_is_in_the_results(self, tmp_path: Path) -> None:
        assert (
            run(
                *SMALL, "--policy", "gorgo,random,greedy-oracle-total", "--seeds", "8", "--out", str(tmp_path)
            )
            == 0
        )
        found = results(tmp_path)
        assert found["candidate"] == "gorgo"
        assert found["seeds"] == [1, 2, 3, 4, 5, 6, 7, 8]
        (cell,) = found["cells"]
        assert [p["role"] for p in cell["policies"]] == ["candidate", "baseline", "yardstick"]
        assert all(len(p["per_seed"]) == 8 for p in cell["policies"])
        by_label = {(c["metric"], c["statistic"]): c for c in cell["comparisons"]}
        e2e = by_label["e2e_ms", "p95"]
        assert e2e["units"] == 8
        assert e2e["to_candidate"]["random"]["ratio"] > 1.0
        assert set(e2e["to_best"]) == {"gorgo", "random"}
        assert e2e["bound"]["rival"] == "random"
        said = " ".join(cell["conclusion"])
        assert "gorgo against random" in said
        assert "indicative only" in said

    def test_few_seeds_conclude_nothing(self, tmp_path: Path) -> None:
        assert run(*SMALL, "--policy", "gorgo,random", "--seeds", "2", "--out", str(tmp_path)) == 0
        (cell,) = results(tmp_path)["cells"]
        assert "cannot carry an interval" in " ".join(cell["conclusion"])
        assert cell["comparisons"][0]["to_candidate"]["random"]["low"] is None
        assert cell["comparisons"][0]["bound"] is None

    def test_the_report_is_one_whole_page(self, tmp_path: Path) -> None:
        assert (
            run(*SMALL, "--policy", "gorgo,random,least-request", "--seeds", "8", "--out", str(tmp_path)) == 0
        )
        page, text = read_page(tmp_path)
        assert "pre" in page.tags
        for name in ("gorgo", "random", "least-request", "indicative only", "dropped as warm-up"):
            assert name in text
        assert "nan" not in re.sub(r"<style>.*?</style>", "", text).lower().split()

    def test_a_sweep_finds_knees(self, tmp_path: Path) -> None:
        words = (
            "--policy",
            "gorgo,random",
            "--seeds",
            "1",
            "--sweep",
            "load",
            "--loads",
            "0.2,8",
            "--open-loop",
        )
        assert run(*SMALL, *words, "--out", str(tmp_path)) == 0
        sweep = results(tmp_path)["sweep"]
        assert len(sweep["loads"]) == 2
        assert sweep["knees"]["random"] == pytest.approx(sweep["loads"][0])
        assert "knee" in read_page(tmp_path)[1]

    def test_a_guidellm_sweep_goes_from_one_stream_to_throughput(self, tmp_path: Path) -> None:
        words = ("--policy", "gorgo", "--seeds", "1", "--shape", "sweep:3", "--out", str(tmp_path))
        assert run(*SMALL, *words) == 0
        found = results(tmp_path)
        assert [c["name"].split(":")[0] for c in found["cells"]] == ["demo, poisson"] * 3
        rates = [c["load"]["rate_rps"] for c in found["cells"]]
        assert rates == sorted(rates)

    def test_tuned_weights_are_used_and_told(self, tmp_path: Path) -> None:
        words = ("--policy", "gorgo,random", "--seeds", "1", "--tune", "3", "--out", str(tmp_path))
        assert run(*SMALL, *words) == 0
        (cell,) = results(tmp_path)["cells"]
        (row,) = cell["tuning"]
        assert row["policy"] == "gorgo"
        assert row["objective"] <= row["objective_at_defaults"]
        assert cell["policies"][0]["weights"] == row["weights"]
        assert "Tuned weights" in read_page(tmp_path)[1]

    def test_a_trace_is_judged_within_itself(self, tmp_path: Path) -> None:
        path = tmp_path / "own.jsonl"
        save_trace(path, WORKLOADS["demo"].make(3))
        out = tmp_path / "out"
        words = ("--trace", str(path), "--fleet", FLEET, "--policy", "gorgo,random", "--out", str(out))
        assert run(*words) == 0
        (cell,) = results(out)["cells"]
        assert cell["name"] == "own"
        assert cell["comparisons"][0]["unit"] == "request"
        assert cell["comparisons"][0]["bound"] is not None
        assert "within this recorded trace" in " ".join(cell["conclusion"])

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ((), "--workload or --trace"),
            (("--workload", "demo", "--trace", "x"), "either"),
            (("--workload", "demoo"), "did you mean 'demo'"),
            (("--workload", ","), "--workload names no workload"),
            (("--workload", "demo", "--first-seed", "-1"), "--first-seed must be at least 0"),
            (("--workload", "demo", "--fleet", sys.executable), f"{sys.executable}: not a YAML file"),
            (("--workload", "zzz"), "unknown workload"),
            (("--workload", "demo", "--policy", "gorgi"), "unknown policy"),
            (("--workload", "demo", "--fleet", "moon"), "fleet"),
            (("--workload", "demo", "--fleet", "no.yaml"), "No such file"),
            (("--workload", "demo", "--policy", "random", "--candidate", "gorgo"), "not among"),
            (("--workload", "demo", "--seeds", "0"), "seeds"),
            (("--workload", "demo", "--lost-hits", "3"), "lost-hits"),
            (("--workload", "demo", "--policy", "random", "--warmup", "900"), "leaves nothing to judge of"),
            (("--workload", "demo", "--warmup", "-1"), "--warmup must be at least 0"),
            (("--trace", "x.jsonl", "--scale", "-2"), "--scale must be at least 0"),
            (("--workload", "demo", "--load", "nan"), "--load must be at least 1e-09, not nan"),
            (("--workload", "demo", "--load", "inf"), "--load must be"),
            (
                ("--workload", "demo", "--policy", "random", "--load", "1e-9"),
                "lasts [0-9,]* days, and 31 are",
            ),
            (
                ("--workload", "demo", "--policy", "random", "--shape", "poisson:1e-300"),
                "and 31 are the most",
            ),
            (("--workload", "demo", "--over-http", "http://x", "--load", "1e-9"), "and 31 are the most"),
            (("--workload", "demo", "--margin", "nan"), "--margin must be"),
            (("--workload", "demo", "--seconds", "-5"), "--seconds must be at least 0"),
            (("--workload", "demo", "--shape", "sweeping"), "unknown shape"),
            (("--workload", "demo", "--policy", "random", "--shape", "sweep:²"), "number of steps"),
            (("--trace", "nowhere.jsonl", "--policy", "random"), "nowhere.jsonl"),
            (("--workload", "demo", "--over-http", "ftp://x"), "not a URL"),
            (("--workload", "demo", "--over-http", "http://x", "--tune", "3"), "simulated"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_words(
        self, words: tuple[str, ...], says: str, tmp_path: Path
    ) -> None:
        with pytest.raises(EppError, match=says):
            run(*words, "--out", str(tmp_path / "out"))

    def test_blocks_that_fit_into_no_cache_are_told(self, tmp_path: Path) -> None:
        whole = WORKLOADS["demo"].make(3)[:20]
        save_trace(tmp_path / "big.jsonl", [replace(r, block_tokens=10**9) for r in whole])
        words = ("--trace", str(tmp_path / "big.jsonl"), "--policy", "random", "--out", str(tmp_path / "out"))
        with pytest.raises(
            EppError, match="big: its blocks of 1,000,000,000 tokens fit into no cache of 983,549"
        ):
            run(*words)

    def test_a_fleet_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "f.yaml").write_bytes(b"\xff\xfe")
        with pytest.raises(EppError, match=r"f\.yaml: not a YAML file: 'utf-8'"):
            run("--workload", "demo", "--fleet", str(tmp_path / "f.yaml"))

    def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(EppError, match="is no folder that can be written to"):
            run("--workload", "demo", "--policy", "random", "--out", str(tmp_path / "file" / "out"))
        (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
        with pytest.raises(EppError, match="gone is no folder that can be written to"):
            run("--workload", "demo", "--policy", "random", "--out", str(tmp_path / "gone"))
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("words", "seeds"),
        [
            (("--workload", "demo"), 20),
            (("--workload", "demo", "--policy", "gorgo,lodestar"), 20),
            (("--workload", "demo", "--policy", "lodestar,gorgo"), 8),
            (("--workload", "demo", "--policy", "lodestar,gorgo", "--seeds", "3"), 3),
            (("--workload", "demo", "--sweep", "load"), 5),
            (("--trace", "x.jsonl"), 1),
        ],
    )
    def test_fewer_loads_are_drawn_where_a_run_is_long(self, words: tuple[str, ...], seeds: int) -> None:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        asked = parser.parse_args(words)
        candidate = command.candidate_of(None, command.policies_of(asked.policy, yardsticks=True))
        assert command.seeds_of(asked, candidate) == seeds

    def test_the_list_names_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--list") == 0
        text = capsys.readouterr().out
        for name in ("art-chat-apr-7", "paper-exact", "gorgo", "greedy-oracle-total"):
            assert name in text
        assert "toolagent-like-prefill  " in text


class TestTraceStats:
    def test_the_table_has_lengths_reuse_gaps_and_fits(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("demo", "--capacity", "10k,1M", module=trace_command) == 0
        text = capsys.readouterr().out
        for words in (
            "prompt tokens",
            "within users",
            "gaps in sessions",
            "LRU cache of 10k",
            "LRU cache of 1M",
        ):
            assert words in re.sub(r"\s+", " ", text)

    def test_json_has_the_same_figures(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        save_trace(path, WORKLOADS["demo"].make(1))
        assert run(str(path), "--json", "--capacity", "100000000", module=trace_command) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["reuse_by_capacity"]["100000000"] == pytest.approx(found["stats"]["reuse_share"])
        assert found["requests_without_blocks"] == 0

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("art-chat-apr7", "neither a file nor a workload (did you mean 'art-chat-apr-7'?)"),
            ("zzz", "neither a file nor a workload (workloads: "),
        ],
    )
    def test_a_name_that_is_none_is_told_with_those_near_it(self, name: str, words: str) -> None:
        with pytest.raises(EppError) as caught:
            run(name, module=trace_command)
        assert words in str(caught.value)

    def test_a_negative_seed_is_refused(self) -> None:
        with pytest.raises(EppError, match="--seed must be at least 0, not -1"):
            run("demo", "--seed", "-1", module=trace_command)

    def test_a_table_of_another_kind_is_told_as_such(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.csv"
        path.write_text("time,prompt,answer\n0,10,5\n")
        with pytest.raises(EppError) as caught:
            run(str(path), module=trace_command)
        assert "line 1 is neither a JSON object nor the header of Azure's CSV, TIMESTAMP," in str(
            caught.value
        )
        assert "'time,prompt,answer'" in str(caught.value)

    def test_the_help_says_that_some_sessions_are_taken(self, tmp_path: Path) -> None:
        parser = argparse.ArgumentParser()
        trace_command.add_arguments(parser)
        session = '{"id": "%d", "block": 8, "tool_tokens": 0, "system_tokens": 0, "requests": [[0, 9, 1, 1, 0, []]]}'
        (tmp_path / "t").write_text("\n".join(session % number for number in range(100)))
        taken = len({request.user for request in load_trace(tmp_path / "t")})
        assert f"agent sessions (the first {taken})" in " ".join(parser.format_help().split())

    @pytest.mark.parametrize("text", ["many", "0", "-3M", "inf", "1e400k"])
    def test_a_capacity_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(EppError):
            trace_command.parse_tokens(text)
