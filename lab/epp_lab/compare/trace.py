"""The canonical trace record. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Annotated

import msgspec

from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What readers take; no context is nearly as long. Values made in Python are not checked.
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceError(EppError):
    """A line of a trace cannot be read; the message names the line and the problem."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        at_ms: intended send time since the start of the trace. For a request with ``after`` it is nominal:
            what an open-loop replay uses; a closed-loop replay waits for the answer instead.
        session: requests of one conversation share it.
        user: who sent it; sessions of one user may share content.
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer; no picker knows it beforehand.
        block_ids: one id per run of ``block_tokens`` prompt tokens. Ids are prefix-cumulative: equal ids at
            one position mean equal content up to there. The last block may be partial (its content is then
            the head of that id's content); tokens beyond the last id are shared with nobody.
        block_tokens: tokens per block.
        after: index (position in the trace) of the request whose answer this one waits for, None for a
            request that is sent at ``at_ms`` whatever happens.
        think_ms: pause between that answer and this request.
        turn_starts: token offsets at which a new message starts, rising; the system message comes before the
            first, then user and assistant alternate, the last is the user's. Empty when not known.
        region: where it comes from, of a fleet with `epp_lab.sim.scenario.Regions`; empty to draw it.
        tenant: whose it is where tenants share a queue (`epp.schedule.queue`).
        priority: its band there.
        deadline_ms: time to first token that it asks for, 0 for none.
        max_output_tokens: limit that its client sends, None for none.
    """

    at_ms: Milliseconds
    session: str
    user: str
    prompt_tokens: Tokens
    output_tokens: Tokens
    block_ids: tuple[int, ...]
    block_tokens: Tokens
    after: int | None = None
    think_ms: Milliseconds = 0.0
    turn_starts: tuple[int, ...] = ()
    region: str = ""
    tenant: str = ""
    priority: int = 0
    deadline_ms: Milliseconds = 0.0
    max_output_tokens: Tokens | None = None


def in_time_order(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Sort requests by ``at_ms`` (ties in given order); ``after`` points to the new positions.

    Raises:
        TraceError: a request would come before the one it waits for.
    """
    order = sorted(range(len(requests)), key=lambda i: requests[i].at_ms)
    position = {old: new for new, old in enumerate(order)}
    out = []
    for new, old in enumerate(order):
        request = requests[old]
        if request.after is not None:
            after = position[request.after]
            if after >= new:
                raise TraceError(f"request {old} waits for {request.after}, which is sent later")
            request = replace(request, after=after)
        out.append(request)
    return tuple(out)


def select(
    requests: Iterable[TraceRequest],
    *,
    from_ms: float = -inf,
    until_ms: float = inf,
    max_prompt_tokens: int | None = None,
) -> tuple[TraceRequest, ...]:
    """Return requests that start in ``[from_ms, until_ms)`` with prompts of at most ``max_prompt_tokens``.

    Their times count from ``from_ms``. A follower of a dropped request follows the nearest kept request
    before it, with the think times in between added up; when none is kept it starts its session at its
    nominal time. Dropped requests are not held: what comes may be a stream of any length.
    """
    kept: list[TraceRequest] = []
    new_index: dict[int | None, int] = {}
    too_long: dict[int | None, TraceRequest] = {}
    start_ms = max(from_ms, 0.0)
    for index, request in enumerate(requests):
        if not from_ms <= request.at_ms < until_ms:
            continue
        if max_prompt_tokens is not None and request.prompt_tokens > max_prompt_tokens:
            if request.after is not None:
                too_long[index] = request
            continue
        after, think_ms = request.after, request.think_ms
        while (dropped := too_long.get(after)) is not None:
            after, think_ms = dropped.after, think_ms + dropped.think_ms
        after = new_index.get(after)
        new_index[index] = len(kept)
        at_ms, think_ms = request.at_ms - start_ms, 0.0 if after is None else think_ms
        kept.append(replace(request, at_ms=at_ms, after=after, think_ms=think_ms))
    return tuple(kept)
