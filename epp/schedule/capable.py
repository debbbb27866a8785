"""What a request's words mean for the chance of a right answer: its language, task and tried models.

Owns which of a client's words count: names of models that its candidates are called by, tasks that the table
in force knows. Nothing else that a client writes there is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.schedule.filters import Candidates
    from epp.signals.capability import Capability, Success
    from epp.types import RequestView


def success_of(capability: Capability, request: RequestView, found: Candidates) -> Success | None:
    """The candidates' chances, None where nothing is known of any or there is no prompt."""
    tokens = request.prompt_tokens
    if not tokens or not len(capability):
        return None
    models = found.served_models or (request.model,) * len(found.slots)
    return capability.success(models, language=request.language, task=request.task, prompt_tokens=tokens)


def words_of(capability: Capability, request: RequestView, found: Candidates) -> tuple[str, tuple[str, ...]]:
    """Choose the task and the tried models that count."""
    tried = request.tried_models
    if tried:
        known = frozenset(found.served_models)
        tried = tuple(name for name in tried if name in known)
    return capability.task(request.task) if request.task else "", tried
