"""What a request's words mean for the chance of a right answer: its language, task and tried models.

Owns which of a client's words count: names of models that its candidates are called by, tasks that the table
in force knows. Nothing else that a client writes there is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.schedule.filters import Candidates
    from epp.schedule.in_flight import Ask
    from epp.signals.capability import Capability, Success


def success_of(capability: Capability, ask: Ask, found: Candidates, tokens: int) -> Success | None:
    """The candidates' chances, None where nothing is known of any or there is no prompt."""
    if not tokens or not len(capability):
        return None
    models = found.served_models or (ask.model,) * len(found.slots)
    return capability.success(models, language=ask.language, task=ask.task, prompt_tokens=tokens)


def words_of(capability: Capability, ask: Ask, found: Candidates) -> tuple[str, tuple[str, ...]]:
    """The task and the tried models that count."""
    tried = ask.tried_models
    if tried:
        known = frozenset(found.served_models)
        tried = tuple(name for name in tried if name in known)
    return capability.task(ask.task) if ask.task else "", tried
