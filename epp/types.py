"""What a policy sees and what it says: the only types of ours that `epp.policies` imports.

A `Snapshot` is one immutable snapshot taken at one instant: columns, one value per eligible endpoint, all of
the same length and in the same order. It holds ages, never timestamps, so that a recorded view can be ranked
again at any later time. A `Ranking` is the policy's answer: one cost per endpoint (lower is better) and the
terms it is the sum of.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


#: How much of a prompt `RequestView.prefix_key` covers; as in the routers that hash prefixes (GORGO, SGLang).
PREFIX_KEY_TOKENS = 256

#: Longest name of a model, public or an engine's, wherever one is read: requests, configuration, capability
#: files, checked answers. Records keep it whole, so that they can be joined with all of these. What keeps
#: names bounds their number alone, and real ones are paths at most.
MAX_MODEL_CHARS = 512

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


class RequestView(Struct, frozen=True):
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
        prefix_sharing: requests of the last minute, fading and a burst being one, that parted from the known
            prefixes where this one does: many for a context that prompts share, none for a conversation that
            goes on.
        usual_first_token_ms: mean of the least time to first token that requests of the model had to expect
            of late (`epp.signals.first_tokens`), 0 when not known.
        language: of the prompt, by its script (`epp.apis.language`); ``""`` when not known.
        task: what kind of work it is, by a name of the capability file; ``""`` for none in particular.
        tried_models: of `Snapshot.models` those that the client says have answered it wrongly, sorted.
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
    usual_first_token_ms: float = 0.0
    language: str = ""
    task: str = ""
    tried_models: tuple[str, ...] = ()


_T = TypeVar("_T")


class Signals(NamedTuple, Generic[_T]):
    """The numbers of one endpoint, or the columns of all, by name."""

    rtt_ms: _T
    cached_tokens: _T
    uncached_tokens: _T
    queued_tokens: _T
    pending_uncached_tokens: _T
    running_requests: _T
    decoding_requests: _T
    decoding_tokens: _T
    engine_running: _T
    engine_waiting: _T
    engine_kv_usage: _T
    engine_used_tokens: _T
    engine_age_ms: _T
    hit_ratio: _T
    prefill_base_ms: _T
    prefill_ms_per_token: _T
    decode_base_ms: _T
    decode_ms_per_request: _T
    success: _T
    cold_chance: _T
    connect_ms: _T
    upload_rounds: _T


#: Columns of a `Snapshot` that hold numbers, in the order in which tools print and record them.
NUMERIC_COLUMNS = Signals._fields


class _Column:
    """A named row of a view's block."""

    __slots__ = ("_row",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._row = NUMERIC_COLUMNS.index(name)

    def __get__(self, view: Snapshot, owner: type) -> NDArray[np.float64]:
        column: NDArray[np.float64] = view.block[self._row]
        return column


class Snapshot(Struct, frozen=True):
    """Signals about every eligible endpoint at one instant.

    A value that is not known is filled with the worst known value of its column (0 when none is known), so
    that no endpoint is preferred for being unknown; ``unknown`` says which were filled.

    The columns lie in one block and are cut from it when they are asked for: most decisions look at few.

    Attributes:
        endpoints: ``host:port`` of each candidate, in pool order.
        regions: region of each, ``""`` when not configured.
        engine_classes: hardware and engine class of each, ``""`` when not configured.
        block: all numbers, ``[columns, endpoints]``, a row for each of `NUMERIC_COLUMNS`; not to be written.
        rtt_ms: round-trip time to each over a warm connection.
        cached_tokens: prompt tokens expected in its KV cache.
        uncached_tokens: prompt tokens it would have to prefill.
        queued_tokens: all prompt tokens of its unfinished requests (the paper's counter, live).
        pending_uncached_tokens: uncached tokens of its requests that await their first token, live; hits that
            were expected count as far as its engine loses them.
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
    block: NDArray[np.float64]
    unknown: Mapping[str, NDArray[np.bool_]] = {}
    rtt_sources: NDArray[np.int8] | None = None
    models: tuple[str, ...] = ()

    rtt_ms = _Column()
    cached_tokens = _Column()
    uncached_tokens = _Column()
    queued_tokens = _Column()
    pending_uncached_tokens = _Column()
    running_requests = _Column()
    decoding_requests = _Column()
    decoding_tokens = _Column()
    engine_running = _Column()
    engine_waiting = _Column()
    engine_kv_usage = _Column()
    engine_used_tokens = _Column()
    engine_age_ms = _Column()
    hit_ratio = _Column()
    prefill_base_ms = _Column()
    prefill_ms_per_token = _Column()
    decode_base_ms = _Column()
    decode_ms_per_request = _Column()
    success = _Column()
    cold_chance = _Column()
    connect_ms = _Column()
    upload_rounds = _Column()

    @classmethod
    def of_columns(
        cls,
        columns: Mapping[str, Sequence[float] | NDArray[np.float64]],
        *,
        endpoints: tuple[str, ...],
        regions: tuple[str, ...],
        engine_classes: tuple[str, ...],
        unknown: Mapping[str, NDArray[np.bool_]] | None = None,
        rtt_sources: NDArray[np.int8] | None = None,
        models: tuple[str, ...] = (),
    ) -> Self:
        """A view by the names of its columns.

        Raises:
            KeyError: a column is missing.
            ValueError: they are not of one length.
        """
        block = np.array([columns[name] for name in NUMERIC_COLUMNS], np.float64)
        return cls(endpoints, regions, engine_classes, block, unknown or {}, rtt_sources, models)

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.endpoints)

    def at(self, index: int) -> Signals[float]:
        """One candidate's numbers."""
        return Signals._make(self.block[:, index].tolist())

    def columns(self) -> Signals[NDArray[np.float64]]:
        """Cut every column at once, for formulas that read many."""
        return Signals._make(self.block)


class Ranking(Struct, frozen=True):
    """A policy's answer.

    Attributes:
        costs: one finite cost per endpoint, lower is better.
        terms: what the costs are made of, for people: name -> one value per endpoint. Terms whose names a
            policy lists as additive sum to ``costs``.
        least_first_token_ms: the least time to first token that the request has to expect of any of them, 0
            of a policy that foretells none.
    """

    costs: NDArray[np.float64]
    terms: Mapping[str, NDArray[np.float64]]
    least_first_token_ms: float = 0.0
