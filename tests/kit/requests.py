"""Requests as a picker is asked about them, without a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epp.extproc.types import Destination, LocalReply
from epp.schedule.waiting import at_once
from epp.types import RequestInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.extproc.types import HttpRequest
    from epp.request.director import Director
    from epp.schedule.decision import Decision


def measured(namespace: int, tokens: int, blocks: Sequence[int], block_tokens: float) -> RequestInfo:
    """A request of which the prompt alone is known."""
    return RequestInfo(namespace=namespace, prompt_tokens=tokens, blocks=blocks, block_tokens=block_tokens)


def asked(prompt: RequestInfo | None = None, **fields: Any) -> RequestInfo:
    """A request with this prompt."""
    return replace(prompt or RequestInfo(), **fields)


@dataclass(frozen=True)
class Decided:
    """A decision and the answer that carries it."""

    decision: Decision
    pick: Destination


def decide(director: Director, request: HttpRequest) -> Decided | LocalReply:
    """Decide a request, its tokens estimated."""
    pick = at_once(director.direct(request, since_s=director._clock.mono_s()))
    if isinstance(pick, LocalReply):
        return pick
    decision = director.recent.get(pick.decision_id)
    assert decision is not None
    return Decided(decision, pick)
