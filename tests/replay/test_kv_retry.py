"""Retries in the simulator: the prior holds what is stated, answers are fixed, and what comes of them counts."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.errors import EppError
from epp.policies.registry import create
from epp.replay import command as replay_command
from epp.replay.kv_retry import cell as cells
from epp.replay.kv_retry.cell import CellFigures, RetryTask, fleet, requests_of, run_retry
from epp.replay.kv_retry.document import conclusion, document, encode
from epp.replay.kv_retry.prior import LANGUAGES, LENGTHS, NAMES, draw_truth, right_answers, stated
from epp.replay.kv_retry.report import render, tables
from epp.replay.simulate import PolicyChoice, run_all
from epp.signals.capability import Cell
from epp.sim.retry import Asked, Question, RetrySim
from epp.sim.scenario import WindowOptions
from tests.kit.records import command

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [1, 2, 101, 150])
def test_every_draw_holds_all_that_the_paper_states(seed: int) -> None:
    truth = draw_truth(seed)
    assert [name for name, holds in stated().items() if not holds(truth.accuracy)] == []
    assert ((truth.accuracy > 0) & (truth.accuracy < 1)).all()
    assert np.array_equal(draw_truth(seed).accuracy, truth.accuracy)
    assert not np.array_equal(draw_truth(seed + 1).accuracy, truth.accuracy)


def test_answers_are_right_as_often_as_drawn_and_hard_questions_are_hard_for_all() -> None:
    truth = draw_truth(3)
    right = right_answers(truth, 1, 3, 20_000, 3)
    assert right.mean(axis=0) == pytest.approx(truth.accuracy[:, 1, 3], abs=0.015)
    alone = np.prod(1.0 - truth.accuracy[:, 1, 3])
    assert (~right.any(axis=1)).mean() > alone


def ask(
    right: list[set[str]],
    policy: str = "laar",
    *,
    attempts: int = 10,
    patience_s: float | None = None,
    **chances: float,
) -> list[Asked]:
    questions = [Question("en", frozenset(names)) for names in right]
    requests = requests_of(4096, shared=False)[: len(right) * 10]
    table = {name: {Cell("en", 4096): chances.get(name.split("-")[0], 0.5)} for name in NAMES}
    sim = RetrySim(
        questions,
        requests[::10] if attempts == 1 else requests,
        fleet(),
        create(policy, None if patience_s is None else {"patience_s": patience_s}),
        attempts=attempts,
        at_once=4,
        chances=table,
        weights={},
        seed=1,
        options=WindowOptions(),
    )
    return sim.ask()


def test_a_question_is_asked_until_a_model_is_right_or_none_is_left() -> None:
    found = ask([{NAMES[0]}, set(), set(NAMES), {NAMES[3]}] * 3)
    for number, asked in enumerate(found):
        names = [{NAMES[0]}, set(), set(NAMES), {NAMES[3]}][number % 4]
        assert asked.correct is bool(names)
        assert len(set(asked.models)) == len(asked.models) <= 5
        assert (asked.models[-1] in names) is asked.correct
        assert not set(asked.models[:-1]) & names
    assert {len(asked.models) for asked in found[1::4]} == {5}
    assert {len(asked.models) for asked in found[2::4]} == {1}


def test_models_that_are_not_worth_the_time_are_not_asked_again() -> None:
    # 4K take granite-2b 0.7 s, the others up to 1.4 s.
    hopeful = ask([set()] * 6, patience_s=10.0)
    assert {len(asked.models) for asked in hopeful} == {5}
    hopeless = ask([set()] * 6, patience_s=10.0, phi=0.05, llama=0.05)
    for asked in hopeless:  # one that is idle may be asked before those that are worth it, not after them
        assert {name for name in NAMES if name.startswith("granite")} <= set(asked.models)
        assert asked.models[-1].startswith("granite")
    assert min(len(asked.models) for asked in hopeless) == 2


def test_who_sticks_to_a_model_asks_it_ten_times_for_nothing() -> None:
    found = ask([set()] * 6, "session-affinity")
    for asked in found:
        assert asked.models == (asked.models[0],) * 10
        assert asked.cached_tokens > 8 * 4000  # it has the prompt in its cache from then on
    assert len({asked.models[0] for asked in found}) > 1
    assert all(len(asked.models) == 1 for asked in ask([set()] * 3, "session-affinity", attempts=1))


def test_one_draw_of_all_cells_is_the_same_every_time_and_pays_for_exploring(monkeypatch: Any) -> None:
    monkeypatch.setattr(cells, "LENGTHS", LENGTHS[:1])
    monkeypatch.setattr(cells, "LANGUAGES", LANGUAGES[:2])
    task = RetryTask((PolicyChoice("laar"), PolicyChoice("session-affinity")), 101)
    laar, sticky = run_retry(task)
    assert run_retry(task) == [laar, sticky]
    for ours, theirs in zip(laar, sticky, strict=True):
        assert ours.success >= theirs.success
        assert ours.ttca_ms < theirs.ttca_ms
        assert ours.most_attempts <= 5
        assert 1.0 <= ours.attempts <= theirs.attempts


def test_contexts_in_common_are_found_in_caches() -> None:
    shared, apart = requests_of(8192, shared=True), requests_of(8192, shared=False)
    assert shared[0].block_ids[:-2] == shared[40].block_ids[:-2]
    assert shared[0].block_ids != shared[40].block_ids != shared[50].block_ids
    assert not set(apart[0].block_ids) & set(apart[10].block_ids)


def figures(ttca_ms: float, success: float) -> CellFigures:
    return CellFigures(ttca_ms, success, 0.5, 1.5, 4, 0.0)


def test_the_document_compares_draw_by_draw() -> None:
    count = len(LANGUAGES) * len(LENGTHS)
    runs = [
        [[figures(50.0, 1.0)] * count, [figures(100.0 * factor, 0.5)] * count] for factor in (1.0, 2.0, 4.0)
    ]
    found = document("kv-retry", [1, 2, 3], ["laar", "least-load"], runs, "laar")
    assert len(found.cells) == count + len(LENGTHS)
    for cell in found.cells:
        ours, theirs = cell.policies
        assert ours.gain == [0.0] * 7
        assert (theirs.gain[0], theirs.gain[3], theirs.gain[-1]) == pytest.approx((0.5, 0.75, 0.875))
        assert theirs.gain_per_correct[3] == pytest.approx(0.875)
        assert theirs.success_more == pytest.approx([0.5] * 7)
        assert (ours.success_less, theirs.success_less) == (0, 0)
    backwards = document("kv-retry", [1, 2, 3], ["laar", "least-load"], runs, "least-load")
    assert {cell.policies[0].success_less for cell in backwards.cells} == {3}
    assert f"less in {3 * count} of {3 * count}" in backwards.conclusion[3]
    assert "by at most 50%" in backwards.conclusion[3]
    assert conclusion(found) == found.conclusion
    assert "at most 4 attempts" in found.conclusion[0]
    assert "median gain +75%" in found.conclusion[1]
    assert found.conclusion[2].startswith("time per correct answer against least-load: median gain +88%")
    assert len(tables(found)) == len(LENGTHS)
    page = render(found)
    assert page.count("<table>") == count + len(LENGTHS)
    assert "least-load" in page
    assert "src=" not in page
    assert json.loads(encode(found))["cells"][0]["policies"][1]["gain"][3] == 0.75


def test_the_command_runs_it(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def quick(task: RetryTask) -> list[list[CellFigures]]:
        return [[figures(1e3 * task.seed, 0.9)] * (len(LANGUAGES) * len(LENGTHS)) for _ in task.policies]

    monkeypatch.setattr("epp.replay.kv_retry.command.run_retry", quick)
    words = ("--workload", "kv-retry", "--policy", "laar,least-load", "--seeds", 3, "--workers", 1)
    assert command(replay_command, *words, "--out", tmp_path) == 0
    assert json.loads((tmp_path / "results.json").read_bytes())["draws"] == [101, 102, 103]
    assert (tmp_path / "report.html").exists()
    assert "64K, all languages" in capsys.readouterr().out


def test_a_comparison_goes_on_with_the_draws_it_has(tmp_path: Path, monkeypatch: Any) -> None:
    ran: list[tuple[int, list[str]]] = []

    def quick(task: RetryTask) -> list[list[CellFigures]]:
        ran.append((task.seed, [policy.name for policy in task.policies]))
        return [[figures(1e3 * task.seed, 0.9)] * (len(LANGUAGES) * len(LENGTHS)) for _ in task.policies]

    def replay(policies: str, seeds: int) -> bytes:
        words = ("--workload", "kv-retry", "--policy", policies, "--seeds", seeds, "--workers", 1)
        assert command(replay_command, *words, "--resume", "--out", tmp_path) == 0
        return (tmp_path / "results.json").read_bytes()

    monkeypatch.setattr("epp.replay.kv_retry.kept.run_retry", quick)
    first = replay("laar,least-load", 2)
    assert ran == [(101, ["laar", "least-load"]), (102, ["laar", "least-load"])]
    assert replay("laar,least-load", 2) == first
    assert len(ran) == 2
    replay("least-load,laar-paper,laar", 3)  # another policy, another draw: only those
    assert ran[2:] == [
        (101, ["laar-paper"]),
        (102, ["laar-paper"]),
        (103, ["least-load", "laar-paper", "laar"]),
    ]
    monkeypatch.setattr("epp.replay.kv_retry.kept.__version__", "other")
    assert replay("laar,least-load", 2) == first
    assert ran[5:] == [(101, ["laar", "least-load"]), (102, ["laar", "least-load"])]
    made_by = json.loads((tmp_path / "draws" / "101.json").read_bytes())["made_by"]["laar"]
    assert "patience_s=" in made_by  # a default that changes makes other figures
    for damaged in (b"[]", b'{"made_by": {"\xff": ""}, "cells": {}}'):
        (tmp_path / "draws" / "101.json").write_bytes(damaged)
        with pytest.raises(EppError, match="holds no finished draw"):
            replay("laar", 1)


def _end_this_process(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_that_is_killed_is_told_in_words() -> None:
    with pytest.raises(EppError, match=r"ended from outside.*--resume"):
        run_all(_end_this_process, [1, 2], workers=2)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--policy", "laar", "--sweep", "load"), "closed loop"),
        (("--policy", "laar", "--tune", "4"), "closed loop"),
        (("--policy", "laar", "--fleet", "homo"), "closed loop.* no .*--fleet"),
        (("--policy", "laar", "--seconds", "60"), "closed loop.* no .*--seconds"),
        (("--policy", "greedy-oracle-ttft"), "not whether answers are right"),
        (("--policy", "least-load", "--candidate", "laar"), "--candidate laar"),
    ],
)
def test_what_has_no_meaning_here_is_refused(words: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    with pytest.raises(EppError, match=problem):
        command(replay_command, "--workload", "kv-retry", *words, "--out", tmp_path)
