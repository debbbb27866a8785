"""What a policy sees and what it says: the only types of ours that `epp.policies` imports.

A `FleetView` is one immutable snapshot taken at one instant: columns, one value per eligible endpoint, all of
the same length and in the same order. It holds ages, never timestamps, so that a recorded view can be ranked
again at any later time. A `Ranking` is the policy's answer: one cost per endpoint (lower is better) and the
terms it is the sum of.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING

from epp.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


#: How much of a prompt `RequestView.prefix_key` covers; as in the routers that hash prefixes (GORGO, SGLang).
PREFIX_KEY_TOKENS = 256

#: The shortest length bucket; longer ones double.
SHORTEST_BUCKET_TOKENS = 1024
_LONGEST_BUCKET_TOKENS = 1 << 30


def length_bucket(prompt_tokens: float) -> int:
    """The power of two nearest to a prompt's length, by ratio: 4096 for 2897 to 5792 tokens.

    Nearest and not next, so that an estimate that is some per cent off stays where it belongs.
    """
    if prompt_tokens <= SHORTEST_BUCKET_TOKENS:
        return SHORTEST_BUCKET_TOKENS
    if prompt_tokens >= _LONGEST_BUCKET_TOKENS:
        return _LONGEST_BUCKET_TOKENS
    return int(2 ** round(math.log2(prompt_tokens)))


#: RFC 6928: bytes that a new connection sends before the first acknowledgement, ten segments of 1,460.
FIRST_FLIGHT_BYTES = 14_600


def upload_doublings(body_bytes: float) -> float:
    """How often a window of the first flight's size has doubled when a body is through.

    0 for no body, 1 for one of `FIRST_FLIGHT_BYTES`, 2 for three times as much.
    """
    return math.log2(1.0 + body_bytes / FIRST_FLIGHT_BYTES)


#: Where a round-trip time comes from, by code: nowhere, the configuration, our probes, Envoy's connects.
RTT_SOURCES = ("", "assumed", "probe", "connect")


@fast_dataclass(frozen=True, slots=True)
class RequestView:
    """What a policy may know of the request.

    Attributes:
        decision_id: key of every draw made for this request.
        model: public model name, ``""`` when the body names none.
        prompt_tokens: estimated or counted tokens of the prompt; 0 for a request without a prompt.
        body_bytes: size of the request body on the wire.
        max_output_tokens: the client's output limit, None when it sets none.
        affinity_key: session hint, else the prompt's first blocks; ``""`` when there is neither.
        prefix_key: the blocks within the prompt's first `PREFIX_KEY_TOKENS`, the first block at least;
            ``""`` for a prompt without a full block.
        sequence: number of decisions made before this one by this picker (what a rotation turns on).
        expected_output_tokens: mean answer of the model of late, no more than the client's limit.
        prefix_sharing: requests of the last minute, fading, that parted from the known prefixes where this
            one does: many for a context that prompts share, none for a conversation that goes on.
        language: of the prompt, by its script (`epp.prompt.language`); ``""`` when not known.
        task: what kind of work it is, by a name of the capability file; ``""`` for none in particular.
        tried_models: of `FleetView.models` those that the client says have answered it wrongly, sorted.
    """

    decision_id: str
    model: str = ""
    prompt_tokens: int = 0
    body_bytes: int = 0
    max_output_tokens: int | None = None
    affinity_key: str = ""
    prefix_key: str = ""
    sequence: int = 0
    expected_output_tokens: float = 0.0
    prefix_sharing: float = 0.0
    language: str = ""
    task: str = ""
    tried_models: tuple[str, ...] = ()


@fast_dataclass(frozen=True, slots=True)
class FleetView:
    """Signals about every eligible endpoint at one instant.

    A value that is not known is filled with the worst known value of its column (0 when none is known), so
    that no endpoint is preferred for being unknown; ``unknown`` says which were filled.

    Attributes:
        endpoints: ``host:port`` of each candidate, in pool order.
        regions: region of each, ``""`` when not configured.
        engine_classes: hardware and engine class of each, ``""`` when not configured.
        rtt_ms: round-trip time to each over a warm connection.
        cached_tokens: prompt tokens expected in its KV cache.
        uncached_tokens: prompt tokens it would have to prefill.
        queued_tokens: all prompt tokens of its unfinished requests (the paper's counter, live).
        pending_uncached_tokens: uncached tokens of its requests that await their first token, live.
        running_requests: its unfinished requests, live.
        decoding_requests: those past their first token, live.
        decoding_tokens: prompt tokens and expected answers of these, live.
        engine_running: requests in its batch by its own metrics, as old as ``engine_age_ms``.
        engine_waiting: requests in its queue by its own metrics.
        engine_kv_usage: share of its KV cache in use, 0..1.
        engine_used_tokens: tokens of its KV cache in use: that share of the capacity it reports.
        engine_age_ms: age of the engine metrics.
        hit_ratio: cached tokens that its engine had of late over those expected of it, 0..1.5; 1 unless told.
        prefill_base_ms: fixed time of one prefill there, learned by engine class (`epp.signals.rates`).
        prefill_ms_per_token: time of one uncached token, likewise.
        decode_base_ms: time of a token of an answer that is alone in the batch, likewise.
        decode_ms_per_request: what every further answer in the batch adds to it, likewise.
        success: chance that its model answers such a request rightly, 0..1 (`epp.signals.capability`); 1 for
            all where nothing is known of any.
        cold_chance: chance that the next request there opens a connection, 0..1 (`epp.signals.paths`); 0
            where nobody told of connections.
        connect_ms: time to open one there, a round trip where none was seen; 0 likewise.
        upload_rounds: round trips per doubling of a body on a connection that is there, as seen; 1, as on a
            new one, where none was.
        unknown: per column name, a mask of the values that were filled in.
        rtt_sources: where each round trip comes from, as indices of `RTT_SOURCES`; for people, None when not
            recorded.
        models: what the engine of each calls the model; empty when all use its public name.
    """

    endpoints: tuple[str, ...]
    regions: tuple[str, ...]
    engine_classes: tuple[str, ...]
    rtt_ms: NDArray[np.float64]
    cached_tokens: NDArray[np.float64]
    uncached_tokens: NDArray[np.float64]
    queued_tokens: NDArray[np.float64]
    pending_uncached_tokens: NDArray[np.float64]
    running_requests: NDArray[np.float64]
    decoding_requests: NDArray[np.float64]
    decoding_tokens: NDArray[np.float64]
    engine_running: NDArray[np.float64]
    engine_waiting: NDArray[np.float64]
    engine_kv_usage: NDArray[np.float64]
    engine_used_tokens: NDArray[np.float64]
    engine_age_ms: NDArray[np.float64]
    hit_ratio: NDArray[np.float64]
    prefill_base_ms: NDArray[np.float64]
    prefill_ms_per_token: NDArray[np.float64]
    decode_base_ms: NDArray[np.float64]
    decode_ms_per_request: NDArray[np.float64]
    success: NDArray[np.float64]
    cold_chance: NDArray[np.float64]
    connect_ms: NDArray[np.float64]
    upload_rounds: NDArray[np.float64]
    unknown: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    rtt_sources: NDArray[np.int8] | None = None
    models: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.endpoints)


#: Columns of a `FleetView` that hold numbers, in the order in which tools print and record them.
NUMERIC_COLUMNS = (
    "rtt_ms",
    "cached_tokens",
    "uncached_tokens",
    "queued_tokens",
    "pending_uncached_tokens",
    "running_requests",
    "decoding_requests",
    "decoding_tokens",
    "engine_running",
    "engine_waiting",
    "engine_kv_usage",
    "engine_used_tokens",
    "engine_age_ms",
    "hit_ratio",
    "prefill_base_ms",
    "prefill_ms_per_token",
    "decode_base_ms",
    "decode_ms_per_request",
    "success",
    "cold_chance",
    "connect_ms",
    "upload_rounds",
)


@fast_dataclass(frozen=True, slots=True)
class Ranking:
    """A policy's answer.

    Attributes:
        costs: one finite cost per endpoint, lower is better.
        terms: what the costs are made of, for people: name -> one value per endpoint. Terms whose names a
            policy lists as additive sum to ``costs``.
    """

    costs: NDArray[np.float64]
    terms: Mapping[str, NDArray[np.float64]]
