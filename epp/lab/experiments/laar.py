"""Ask key-value lookups until they are right: the time to the first correct answer (TTCA, source [R]).

A cell is a language and a length. Of a hundred questions the first half are answered once by every model, and
a capability file is fitted to that; the second half are asked. Every policy meets the same questions, answers
and network. A seed is a draw of the models' accuracies (`epp.lab.model_accuracies`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from epp.config.capability import CapabilityFile, chances_of
from epp.lab.compare.trace import TraceRequest
from epp.lab.experiment import Experiment
from epp.lab.model_accuracies import LANGUAGES, LENGTHS, NAMES, draw_truth, right_answers
from epp.lab.sim.engine_class import A100_MODELS
from epp.lab.sim.network import NetworkPath
from epp.lab.sim.retry import Question, RetrySim
from epp.lab.sim.scenario import FleetSpec, ReplicaSpec, WindowOptions
from epp.learn.capability.fit import fit_model
from epp.learn.capability.results import Row
from epp.policies.registry import create

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Cell

SEED = 101
#: Questions fitted on, and asked (source [R], section 3.1).
FIT_QUESTIONS = ASKED_QUESTIONS = 50
#: Source [R], section 6.1.
MAX_ATTEMPTS, AT_ONCE = 10, 8
#: A UUID takes some thirty tokens, quotes and an end beside it.
ANSWER_TOKENS = 40
BLOCK_TOKENS = 256
CELLS = tuple(f"{language} {length // 1024}K" for language in LANGUAGES for length in LENGTHS)


@lru_cache(maxsize=128)
def fitted(seed: int) -> Mapping[str, Mapping[Cell, float]]:
    """Fit the capability table to the first half of every cell's questions."""
    truth = draw_truth(seed)
    models = {}
    for model, name in enumerate(NAMES):
        rows = []
        for language, code in enumerate(LANGUAGES):
            for length, tokens in enumerate(LENGTHS):
                right = right_answers(truth, language, length, FIT_QUESTIONS + ASKED_QUESTIONS, seed)
                rows += [
                    Row(str(number), name, code, tokens, bool(answer))
                    for number, answer in enumerate(right[:FIT_QUESTIONS, model])
                ]
        models[name] = fit_model(rows, seed)
    return chances_of(CapabilityFile(models=models))


def requests_of(prompt_tokens: int) -> tuple[TraceRequest, ...]:
    """Make every attempt at every question of a cell, question by question; attempts have one prompt."""
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    questions = (
        TraceRequest(
            at_ms=0.0,
            session=f"q{number}",
            user=f"q{number}",
            prompt_tokens=prompt_tokens,
            output_tokens=ANSWER_TOKENS,
            block_ids=tuple((number << 20) + at for at in range(blocks)),
            block_tokens=BLOCK_TOKENS,
        )
        for number in range(ASKED_QUESTIONS)
    )
    return tuple(question for question in questions for _ in range(MAX_ATTEMPTS))


def fleet() -> FleetSpec:
    """Return one replica of each model on a local network."""
    network = NetworkPath(0.5)
    return FleetSpec(
        tuple(ReplicaSpec(f"{cls.name}:8000", cls, network, "local", model=cls.name) for cls in A100_MODELS)
    )


def run(cell: str, policy: str, seed: int) -> dict[str, float]:
    """Ask one cell's questions under one policy."""
    seed += SEED
    language, length = divmod(CELLS.index(cell), len(LENGTHS))
    right = right_answers(draw_truth(seed), language, length, FIT_QUESTIONS + ASKED_QUESTIONS, seed)
    questions = [
        Question(LANGUAGES[language], frozenset(name for name, yes in zip(NAMES, row, strict=True) if yes))
        for row in right[FIT_QUESTIONS:].tolist()
    ]
    asked = RetrySim(
        questions,
        requests_of(LENGTHS[length]),
        fleet(),
        create(policy, {}),
        attempts=MAX_ATTEMPTS,
        at_once=AT_ONCE,
        chances=fitted(seed),
        weights={},
        seed=seed * 100 + language * 10 + length,
        options=WindowOptions(),
    ).ask()
    spent_s = sum(one.ttca_ms for one in asked) / 1e3
    correct = sum(one.correct for one in asked)
    attempts = sum(len(one.models) for one in asked)
    return {
        "TTCA s": spent_s / len(asked),
        "s per right answer": spent_s / correct if correct else float("nan"),
        "right": correct / len(asked),
        "attempts": attempts / len(asked),
        "hit share": sum(one.cached_tokens for one in asked) / (attempts * LENGTHS[length]),
    }


EXPERIMENT = Experiment(
    name="laar",
    question="How much sooner is the first correct answer there when the policy knows who is likely right?",
    cells=CELLS,
    entries=("laar", "laar-paper", "least-load", "session-affinity"),
    measures=("TTCA s", "s per right answer", "right", "attempts", "hit share"),
    run=run,
    seeds=20,
)
