"""How long a request will take where it is sent: first token and end, from a decision's own snapshot.

What the prediction rests on comes with the snapshot, so that a recorded decision predicts the same again. The
terms are those that the rates are learned by (`epp.schedule.feedback`): the network, the prefills that the
first token waits for, its own among them, and a decode step per token of the answer, dearer by every answer
beside it. Uncached tokens ahead explain TTFT best: R2 0.714 against 0.625 for all queued tokens (source [G]).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from epp.types import BACKLOG_MS, TOKEN_MS, UPLOAD_ROUNDS, Role, network_ms

if TYPE_CHECKING:
    from epp.types import RequestInfo, Signals, Snapshot

#: Of a prefill's fixed time, what each request that awaits its first token makes the next one wait for: it is
#: half done on average.
_WAITED = 0.5


class Duration(Struct, frozen=True):
    """Seconds after the decision, the first not later than the second."""

    first_token_s: float
    end_s: float


def predict_duration(
    request: RequestInfo, snapshot: Snapshot, chosen: int, prefiller: int | None = None
) -> Duration:
    """Predict when the first token and the end of the answer come from a candidate.

    Args:
        request: as it was decided.
        snapshot: as it was when it was.
        chosen: index of the endpoint it goes to.
        prefiller: index of the worker that prefills for it, None where it does so itself.
    """
    seen = snapshot.at(chosen)
    running = seen.running_requests
    first_ms = network_ms(
        seen.rtt_ms,
        request.body_bytes,
        min(UPLOAD_ROUNDS, seen.upload_rounds),
        connect_ms=seen.connect_ms,
        cold=seen.cold_chance,
    )
    if prefiller is None:
        for part_ms in _prefill_parts_ms(request, seen):  # one by one: sums of the same bits as ever
            first_ms += part_ms
    else:
        workers = snapshot.workers[Role.PREFILL]
        backlog_ms = _worse(BACKLOG_MS, workers, prefiller, snapshot, chosen)
        first_ms += max(prefill_ms(request, workers.at(prefiller)), backlog_ms)
        first_ms += transfer_ms(request, snapshot, chosen, prefiller) + seen.prefill_base_ms
    step_ms = seen.decode_base_ms + seen.decode_ms_per_request * (running + request.sequences - 1)
    decode_ms = max(request.expected_output_tokens / request.sequences - 1.0, 0.0) * step_ms
    return Duration(first_ms / 1e3, (first_ms + decode_ms) / 1e3)


def prefill_ms(request: RequestInfo, seen: Signals[float]) -> float:
    """Predict when a prompt is prefilled at an endpoint that has it."""
    return sum(_prefill_parts_ms(request, seen))


def _prefill_parts_ms(request: RequestInfo, seen: Signals[float]) -> tuple[float, float]:
    pending = max(seen.running_requests - seen.decoding_requests, 0.0)
    hits = seen.hit_ratio * seen.cached_tokens
    tokens = max(request.prompt_tokens - hits, 0.0) + seen.pending_uncached_tokens
    return seen.prefill_base_ms * prefills(pending), seen.prefill_ms_per_token * tokens


def transfer_ms(request: RequestInfo, snapshot: Snapshot, chosen: int, prefiller: int) -> float:
    """Predict how long the KV cache of what a candidate lacks of a prompt is on its way, once it is sent."""
    token_ms = _worse(TOKEN_MS, snapshot.workers[Role.PREFILL], prefiller, snapshot, chosen)
    return token_ms * max(request.prompt_tokens - float(snapshot.cached_tokens[chosen]), 0.0)


def _worse(column: str, workers: Snapshot, worker: int, snapshot: Snapshot, chosen: int) -> float:
    """Return the larger of both ends' values of a link."""
    return float(max(workers.extra[column][worker], snapshot.extra[column][chosen]))


def prefills(pending: float) -> float:
    """Count the prefills that a first token waits for, its own included, behind requests without one."""
    return 1.0 + _WAITED * pending
