"""Lookups asked until they are right: accuracies hold what is stated, answers are fixed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from epp.errors import EppError
from epp.policies.registry import create
from epp.types import SuccessCell, SuccessRates
from epp_lab.compare.simulate import completed
from epp_lab.experiments.laar import NAMES, draw_truth, fleet, requests_of, right_answers
from epp_lab.sim.retry import Question, QuestionOutcome, RetrySim
from epp_lab.sim.scenario import WindowOptions


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
) -> list[QuestionOutcome]:
    questions = [Question("en", frozenset(names)) for names in right]
    requests = requests_of(4096)[: len(right) * 10]
    table = {name: {SuccessCell("en", 4096): chances.get(name.split("-")[0], 0.5)} for name in NAMES}
    sim = RetrySim(
        questions,
        requests[::10] if attempts == 1 else requests,
        fleet(),
        create(policy, None if patience_s is None else {"patience_s": patience_s}),
        attempts=attempts,
        at_once=4,
        success_rates=SuccessRates(table),
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
        assert [asked.after(n)[1] for n in range(1, len(asked.models))] == [False] * (len(asked.models) - 1)
        assert asked.after(10) == asked.after(len(asked.models)) == (asked.ended_ms[-1], asked.correct)
        assert list(asked.ended_ms) == sorted(asked.ended_ms)
    assert {len(asked.models) for asked in found[1::4]} == {5}
    assert {len(asked.models) for asked in found[2::4]} == {1}


def _end_this_process(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_that_is_killed_is_told_in_words() -> None:
    with pytest.raises(EppError, match="ended from outside"):
        list(completed(_end_this_process, [(1,), (2,)], workers=2))
