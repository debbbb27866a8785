"""`epp demo`: what is refused before anything runs, and what the verdict says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from epp.cli import main
from epp_lab.compare.load import RequestResult
from epp_lab.demo import agents, load, overload
from epp_lab.demo.command import verdict
from epp_lab.demo.example import exit_status, output

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_policy_that_there_is_not_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "out"), "--policy", "least"]) == 2
    assert "unknown policy 'least'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def served(count: int, ttft_ms: float, failed: int = 0) -> list[RequestResult]:
    return [
        RequestResult(
            index=index,
            session=f"s{index // 2}",
            intended_ms=0.0,
            slip_ms=0.0,
            ttft_ms=ttft_ms + index,
            e2e_ms=1.0,
            itl_ms=None,
            status=200,
            error="broken" if index < failed else "",
        )
        for index in range(count)
    ]


def test_the_verdict_counts_failures_and_says_no_more_than_intervals_allow() -> None:
    phases = {
        load.EVEN: {"ours": served(40, 100.0), "plain": served(40, 100.0)},
        load.BURSTS: {"ours": served(40, 100.0), "plain": served(40, 300.0)},
        load.FAILED: {"ours": served(10, 100.0, failed=1), "plain": served(10, 100.0, failed=4)},
    }
    first, _, p95, _ = verdict(phases)
    assert first == "ours beside plain: 1 requests failed instead of 4."
    assert p95 == "Of 3 phases, TTFT p95 is lower in 1 (bursts), level in 1 (even), unknown in 1 (failing)."


def test_a_demo_in_which_every_request_failed_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status({"random": []}) == 1
    assert "random: no request was answered" in capsys.readouterr().err


def test_what_an_earlier_demo_left_is_removed_and_nothing_behind_its_links(tmp_path: Path) -> None:
    folder, kept = tmp_path / "new" / "out", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    with output(folder):
        (folder / "records").mkdir()
        (folder / "linked").symlink_to(kept)
    with output(folder):
        assert [path.name for path in folder.iterdir()] == [".epp-demo"]
    assert (kept / "file").exists()


def test_the_overload_is_what_it_says_of_itself() -> None:
    requests = overload.generate(1)
    expected = overload.CAPACITY * overload.TIMES * overload.LOAD_S
    assert 0.8 * expected < len(requests) < 1.1 * expected  # sessions that begin late are cut off
    by_tenant = Counter(request.tenant for request in requests)
    assert 0.4 < by_tenant["t0"] / len(requests) < 0.7
    assert len(by_tenant) == 4
    assert {request.priority for request in requests} == {0, 1}


def test_the_agents_contexts_are_twice_the_kv_caches() -> None:
    requests = agents.generate(1)
    assert len(requests) == agents.AGENTS * agents.TURNS
    shared = set.intersection(*(set(request.block_ids) for request in requests))
    own_tokens = [request.prompt_tokens - 64 * len(shared) for request in requests]
    load = sum(own_tokens) / agents.TURNS / (len(agents.NAMES) * agents.KV_TOKENS)
    assert 1.9 < load < 2.1
