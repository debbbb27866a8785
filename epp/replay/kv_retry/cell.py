"""One cell under one draw: its questions, the capability file that was fitted for it, and a policy's figures.

A cell is a language and a length. Of a hundred questions the first half are answered once by every model, as
the paper does, and fitted; the second half are asked. Every policy meets the same questions, answers, network
and client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.capability import CapabilityFile, chances_of
from epp.laar.fit import fit_model
from epp.laar.results import Row
from epp.policies.registry import create
from epp.replay.kv_retry.prior import LANGUAGES, LENGTHS, NAMES, draw_truth, right_answers
from epp.replay.trace import TraceRequest
from epp.sim.a100 import A100_MODELS
from epp.sim.network import NetworkPath
from epp.sim.retry import Question, RetrySim
from epp.sim.scenario import FleetSpec, ReplicaSpec, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from epp.replay.kv_retry.prior import Truth
    from epp.replay.simulate import PolicyChoice
    from epp.signals.capability import Cell
    from epp.sim.retry import Asked

#: Questions fitted on, and asked (source [R], section 3.1).
FIT_QUESTIONS = ASKED_QUESTIONS = 50
#: Source [R], section 6.1.
MAX_ATTEMPTS, AT_ONCE = 10, 8
#: A UUID takes some thirty tokens, quotes and an end beside it.
ANSWER_TOKENS = 40
#: Questions of a context in the form with reuse, as SCBench asks them.
PER_CONTEXT = 5
_BLOCK_TOKENS = 256
_QUESTION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class RetryTask:
    """Policies on all cells of one draw.

    Attributes:
        policies: who.
        seed: of the draw.
        shared: questions share contexts.
    """

    policies: tuple[PolicyChoice, ...]
    seed: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What a policy made of a cell.

    Attributes:
        ttca_ms: mean time to the first correct answer; of questions that got none, until they were given up.
        success: share of questions answered rightly in the end.
        first: share answered rightly at once.
        attempts: mean attempts.
        most_attempts: of any question.
        hit_share: prompt tokens that caches gave, of all.
    """

    ttca_ms: float
    success: float
    first: float
    attempts: float
    most_attempts: int
    hit_share: float


def run_retry(task: RetryTask) -> list[list[CellFigures]]:
    """Each policy's figures in every cell of a draw, languages first, then lengths."""
    truth = draw_truth(task.seed)
    chances = fitted(truth, task.seed)
    return [
        [
            _cell(task, policy, truth, chances, (language, length))
            for language in range(len(LANGUAGES))
            for length in range(len(LENGTHS))
        ]
        for policy in task.policies
    ]


def fitted(truth: Truth, seed: int) -> Mapping[str, Mapping[Cell, float]]:
    """The capability table from the first half of every cell's questions."""
    models = {}
    for model, name in enumerate(NAMES):
        rows = []
        for language, code in enumerate(LANGUAGES):
            for length, tokens in enumerate(LENGTHS):
                right = _right(truth, language, length, seed)[:FIT_QUESTIONS, model]
                rows += [
                    Row(str(number), name, code, tokens, bool(answer)) for number, answer in enumerate(right)
                ]
        models[name] = fit_model(rows, seed)
    return chances_of(CapabilityFile(models=models))


def _right(truth: Truth, language: int, length: int, seed: int) -> NDArray[np.bool_]:
    return right_answers(truth, language, length, FIT_QUESTIONS + ASKED_QUESTIONS, seed)


def _cell(
    task: RetryTask,
    policy: PolicyChoice,
    truth: Truth,
    chances: Mapping[str, Mapping[Cell, float]],
    place: tuple[int, int],
) -> CellFigures:
    language, length = place
    right = _right(truth, language, length, task.seed)[FIT_QUESTIONS:]
    questions = [
        Question(LANGUAGES[language], frozenset(name for name, yes in zip(NAMES, row, strict=True) if yes))
        for row in right.tolist()
    ]
    sim = RetrySim(
        questions,
        requests_of(LENGTHS[length], shared=task.shared),
        fleet(),
        create(policy.name, policy.params),
        attempts=MAX_ATTEMPTS,
        at_once=AT_ONCE,
        chances=chances,
        weights=policy.weights,
        seed=task.seed * 100 + language * 10 + length,
        options=_OPTIONS,
    )
    return _figures(sim.ask(), LENGTHS[length])


def requests_of(prompt_tokens: int, *, shared: bool) -> tuple[TraceRequest, ...]:
    """Every attempt at every question of a cell, question by question; attempts have one prompt.

    With shared contexts ``PER_CONTEXT`` questions in a row differ in their last tokens alone.
    """
    context = (prompt_tokens - _QUESTION_TOKENS) // _BLOCK_TOKENS
    blocks = -(-prompt_tokens // _BLOCK_TOKENS)
    requests = []
    for number in range(ASKED_QUESTIONS):
        group = number // PER_CONTEXT if shared else number
        ids = [(group << 20) + at for at in range(context)]
        ids += [(1 << 40) + (number << 20) + at for at in range(blocks - context)]
        one = TraceRequest(
            at_ms=0.0,
            session=f"q{number}",
            user=f"c{group}",
            prompt_tokens=prompt_tokens,
            output_tokens=ANSWER_TOKENS,
            block_ids=tuple(ids),
            block_tokens=_BLOCK_TOKENS,
        )
        requests += [one] * MAX_ATTEMPTS
    return tuple(requests)


def fleet() -> FleetSpec:
    """One replica of each model on a local network."""
    network = NetworkPath(0.5)
    return FleetSpec(
        tuple(ReplicaSpec(f"{cls.name}:8000", cls, network, "local", model=cls.name) for cls in A100_MODELS)
    )


_OPTIONS = WindowOptions()


def _figures(asked: list[Asked], prompt_tokens: int) -> CellFigures:
    count = len(asked)
    attempts = [len(one.models) for one in asked]
    return CellFigures(
        ttca_ms=sum(one.ttca_ms for one in asked) / count,
        success=sum(one.correct for one in asked) / count,
        first=sum(one.correct and len(one.models) == 1 for one in asked) / count,
        attempts=sum(attempts) / count,
        most_attempts=max(attempts),
        hit_share=sum(one.cached_tokens for one in asked) / (sum(attempts) * prompt_tokens),
    )
