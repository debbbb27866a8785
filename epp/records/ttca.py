"""The time to the first correct answer (TTCA, source [R], section 4) of recorded questions.

An attempt goes on with a question when it has the question's prompt and session, and its client names the
models that have served the question so far (``x-epp-tried-models``). One that another followed was wrong.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass
class Question:
    """A question and its attempts so far.

    Attributes:
        policy: what decided the first attempt.
        models: who served each, in order.
        ttca_ms: time of all attempts; NaN where the end of one is not known.
        correct: verdict on the last; None without one.
    """

    policy: str
    models: list[str] = field(default_factory=list)
    ttca_ms: float = 0.0
    correct: bool | None = None


def asked_questions(records: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Join attempts to questions, in the order of their first attempts.

    Retries whose earlier attempts are not on file are left out.
    """
    attempts, took_ms, verdicts = [], {}, {}
    for record in records:
        name, request = record.get("id"), record.get("request")
        if request is not None:
            prompt = (record.get("prompt_id") or name, request["affinity_key"])
            tried = frozenset(request["tried_models"])
            attempts.append((record["at"], name, prompt, tried, record["policy"], record["served_model"]))
        elif record["kind"] == "outcome":
            took_ms[name] = record["e2e_ms"]
        elif record["kind"] == "feedback":
            verdicts[name] = record["correct"]
    found = []
    #: Questions that may go on, the newest last, by prompt and models that have served them.
    waiting = defaultdict[object, list[Question]](list)
    for _, name, prompt, tried, policy, model in sorted(attempts):
        if not tried:
            found.append(asked := Question(policy))
        elif waiting[prompt, tried]:
            asked = waiting[prompt, tried].pop()
        else:
            continue
        asked.models.append(model)
        asked.ttca_ms += nan if (ms := took_ms.get(name)) is None else ms
        asked.correct = verdicts.get(name)
        if not asked.correct:
            waiting[prompt, frozenset(asked.models)].append(asked)
    return found
