"""What a policy sees and says, and what an endpoint is.

A `Snapshot` is one immutable snapshot taken at one instant: columns, one value per eligible endpoint, all of
the same length and in the same order. It holds ages, never timestamps, so that a recorded one can be ranked
again at any later time. A `Ranking` is the policy's answer: one cost per endpoint (lower is better) and the
terms it is the sum of.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence  # noqa: TC003  # msgspec reads annotations at run time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # Columns: a value for each endpoint, whether something holds of it, its slot.
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Slots = NDArray[np.intp]
    # Places in columns.
    Rows = NDArray[np.intp]

#: How much of a prompt `RequestInfo.prefix_key` covers; as in the routers that hash prefixes (GORGO, SGLang).
PREFIX_KEY_TOKENS = 256

#: Longest name of a model, public or an engine's, wherever one is read: requests, configuration, capability
#: files, checked answers. Records keep it whole, so that they can be joined with all of these. What keeps
#: names bounds their number alone, and real ones are paths at most.
MAX_MODEL_CHARS = 512

#: The shortest length bucket; longer ones double.
SHORTEST_BUCKET_TOKENS = 1024
_LONGEST_BUCKET_TOKENS = 1 << 30


def length_bucket(prompt_tokens: float) -> int:
    """Return the power of two nearest to a prompt's length, by ratio: 4096 for 2897 to 5792 tokens.

    Nearest and not next, so that an estimate that is some per cent off stays where it belongs.
    """
    if prompt_tokens <= SHORTEST_BUCKET_TOKENS:
        return SHORTEST_BUCKET_TOKENS
    if prompt_tokens >= _LONGEST_BUCKET_TOKENS:
        return _LONGEST_BUCKET_TOKENS
    return int(2 ** round(math.log2(prompt_tokens)))


@dataclass(frozen=True, slots=True)
class SuccessCell:
    """What chances hang on.

    Attributes:
        language: as `epp.apis.language` finds it.
        bucket_tokens: as `length_bucket` finds it.
        task: a name, ``""`` for any.
    """

    language: str
    bucket_tokens: int
    task: str = ""


class SuccessRates(NamedTuple):
    """What is known of models' answers.

    Attributes:
        by_model: chance of a right answer by what the engine calls the model, and cell.
        ease_spread: how far the questions of a cell differ in ease for all models alike, as a standard
            deviation in log odds; at 0 a model's failure says nothing of another's.
    """

    by_model: Mapping[str, Mapping[SuccessCell, float]]
    ease_spread: float = 0.0


#: Engine class of an endpoint that stands for the engines of a peer region.
PEER_CLASS = "peer region"


class Role(StrEnum):
    """What an endpoint does of a request."""

    WHOLE = "whole"  # prefill and decode, and what there is to encode
    ENCODE = "encode"  # of images, recordings and videos
    PREFILL = "prefill"
    DECODE = "decode"


#: Roles of those who do a part for the endpoint that answers, in the order in which they do it.
HELPERS = (Role.ENCODE, Role.PREFILL)
#: Request headers that name them, as llm-d's sidecar reads them.
WORKER_HEADERS = {Role.PREFILL: "x-prefiller-host-port", Role.ENCODE: "x-encoder-hosts-ports"}
#: By which that sidecar sends a request to the rank at an address, and vLLM and SGLang to one behind theirs.
RANK_ADDRESS_HEADER, RANK_HEADER = "x-data-parallel-host-port", "x-data-parallel-rank"
#: Those that prefill.
PREFILLING = frozenset({Role.WHOLE, Role.PREFILL})


def answers(roles: frozenset[Role]) -> bool:
    """Tell whether an endpoint of these roles may answer a request."""
    return not roles or not roles.isdisjoint((Role.DECODE, Role.WHOLE))


#: Columns of `Snapshot.extra`, with `Snapshot.workers`: time of a prompt's token on an endpoint's link, and
#: of all that is on it.
TOKEN_MS, BACKLOG_MS = "link_ms_per_token", "link_backlog_ms"
#: Another one: 1 where the endpoint's engine can prefill.
PREFILLS = "prefills"

#: Of Llama 3.1 8B in bf16: two of 8 heads of 128 numbers in each of 32 layers. And a usual link's speed.
KV_BYTES_PER_TOKEN, LINK_GBPS = 131_072.0, 100.0

#: Label of an endpoint's revision: KV caches of different ones do not fit each other. Source [E].
REVISION_LABEL = "disaggregatedset.x-k8s.io/revision"

#: No network takes this long: stated it is a mistake, measured a fault of clock or prober.
MAX_RTT_MS = 60_000.0


def ranked(address: str, ranks: int) -> tuple[str, ...]:
    """Name the data-parallel ranks behind an address as endpoints; one that is alone has the address itself.

    The spelling is that of the routers of vLLM and SGLang.
    """
    return (address,) if ranks == 1 else tuple(f"{address}@{rank}" for rank in range(ranks))


def split_rank(name: str) -> tuple[str, str]:
    """Split an endpoint's name into what Envoy knows, its address, and its rank there, ``""`` for none."""
    address, _, rank = name.partition("@")
    return address, rank


@lru_cache(maxsize=256)
def ranks_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Tell the rank of each of these endpoints; empty where none has one."""
    ranks = tuple(split_rank(name)[1] for name in names)
    return ranks if any(ranks) else ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica, or one data-parallel rank of it.

    Attributes:
        address: ``host:port`` as Envoy gets it; IPv6 hosts are bracketed. Of a rank as `ranked` names it.
        tls: whether the upstream speaks TLS.
        server_name: SNI and certificate name, ``""`` for the host itself.
        region: name of its region, ``""`` when unknown.
        engine_class: name of its hardware and engine class, ``""`` when unknown.
        models: public model names that it serves, its adapters' among them; empty means any.
        served_names: public name -> the name under which its engine serves it, where that is another one.
        adapters: those of ``models`` that are LoRA adapters of its base model. They share its KV cache's
            capacity with the base, but no prefix of a prompt.
        context_tokens: longest prompt plus output that it accepts, None when unknown.
        kv_capacity_tokens: size of its KV cache when the operator states it, None to learn it.
        draining: takes no new requests.
        uid: identity beyond the address when the source has one (pod UID), else ``""``.
        labels: free labels, for filters and people.
        base_path: what stands before its paths, ``""`` for nothing.
        roles: the parts of requests that it is there for; empty for whole requests.
        prefills: its engine can; SGLang's that decode cannot.
        kv_events: where its engine tells of its KV cache, ``""`` for where the configuration says.
        kv_replay: where it tells again, likewise.
    """

    address: str
    tls: bool = False
    server_name: str = ""
    region: str = ""
    engine_class: str = ""
    models: frozenset[str] = frozenset()
    served_names: Mapping[str, str] = field(default_factory=dict)
    adapters: frozenset[str] = frozenset()
    context_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    draining: bool = False
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    base_path: str = ""
    roles: frozenset[Role] = frozenset()
    prefills: bool = True
    kv_events: str = ""
    kv_replay: str = ""

    @property
    def revision(self) -> str:
        """Name the revision that it is of, ``""`` where none is told."""
        return self.labels.get(REVISION_LABEL, "")

    def served_name(self, model: str) -> str:
        """Return what its engine calls a public model."""
        return self.served_names.get(model, model)


#: RFC 6928: bytes that a new connection sends before the first acknowledgement, ten segments of 1,460.
FIRST_FLIGHT_BYTES = 14_600


def upload_doublings(body_bytes: float) -> float:
    """Count the doublings of a window of the first flight's size until a body is through.

    0 for no body, 1 for one of `FIRST_FLIGHT_BYTES`, 2 for three times as much.
    """
    return math.log2(1.0 + body_bytes / FIRST_FLIGHT_BYTES)


#: Round trips per doubling before any report of connections (source [P]).
UPLOAD_ROUNDS = 0.7

_Number = TypeVar("_Number", float, "Floats")


def network_ms(
    rtt_ms: _Number,
    body_bytes: float,
    rounds: float | _Number,
    *,
    connect_ms: float | _Number = 0.0,
    cold: float | _Number = 0.0,
) -> _Number:
    """Time on the network until a request's body is through and the first byte of its answer is here, in ms.

    ``rtt * (1 + rounds * doublings) + cold * (connect + rtt * (1 - rounds) * doublings)``, with
    ``doublings = log2(1 + body / 14,600)`` of the congestion window (RFC 5681). Of one endpoint or of many.

    Args:
        rtt_ms: round trip on an open connection.
        body_bytes: size of the body.
        rounds: round trips per doubling on an open connection, 0..1. On a new one it is 1, but for bodies
            within the first flight. Measured over 210 ms without loss: 212, 431, 750 and 1,084 ms for 2, 20,
            72 and 200 KB on a new connection, where this says 219, 470, 751 and 1,023.
        connect_ms: time to open a connection.
        cold: chance that one has to be opened, 0..1.
    """
    doublings = upload_doublings(body_bytes)
    cold_ms = connect_ms
    if body_bytes > FIRST_FLIGHT_BYTES:
        cold_ms = cold_ms + (1.0 - rounds) * doublings * rtt_ms
    return (1.0 + rounds * doublings) * rtt_ms + cold * cold_ms


#: Where a round-trip time comes from, by code: nowhere, the configuration, our probes, Envoy's connects.
RTT_SOURCES = ("", "assumed", "probe", "connect")

#: By what cached tokens are known, by code: what was sent, the engine's events, or more of the two.
CACHED_SOURCES = ("estimate", "events", "both")


class RequestInfo(Struct, frozen=True):
    """What filters and policies may know of the request, its prompt reduced to numbers.

    Prompts are safe to keep in this form, and impossible to read back.

    Attributes:
        decision_id: key of every draw made for this request; the picker's.
        model: public model name, ``""`` when the body names none.
        prompt_tokens: estimated or counted tokens of the prompt; 0 for a request without a prompt.
        body_bytes: size of the request body on the wire.
        max_output_tokens: the client's output limit, None when it sets none.
        affinity_key: session hint, else the prompt's first blocks; ``""`` when there is neither.
        prefix_key: the blocks within the prompt's first `PREFIX_KEY_TOKENS`, the first block at least;
            ``""`` without a prompt.
        sequence: number of decisions made before this one by this picker (what a rotation turns on).
        expected_output_tokens: of all its sequences: each the mean answer of the model of late, no more than
            the client's limit.
        prefix_sharing: requests of the last minute, fading and a burst being one, that parted from the known
            prefixes where this one does: many for a context that prompts share, none for a conversation that
            goes on.
        usual_first_token_ms: mean of the least time to first token that requests of the model had to expect
            of late (`epp.signals.model_means`), 0 when not known.
        language: of the prompt, by its script (`epp.apis.language`); ``""`` when not known.
        task: what kind of work it is, by a name of the capability file; ``""`` for none in particular.
        tried_models: of `Snapshot.models` those that the client says have answered it wrongly, sorted.
        api: parser name, ``""`` for a request that was not parsed.
        opaque: the body was not understood, so the prompt cannot be priced.
        stream: the client asked for an event stream.
        session: the client's session as it may be recorded, ``""`` when it names none.
        program: the same of the agent that the request is a turn of: no key that several conversations share.
        choices: how many answers to each prompt it asks for.
        sequences: how many its engine generates in all, or reads where it generates none: for every prompt
            `choices` at least, more where it keeps the best of them.
        more: its other prompts, where it has several; what is said of prompts here is said of the first, but
            for `prompt_tokens` and `prompt_hash`, which are of all.
        prompts: how many prompts it has; beyond a bound they are taken for one, and `more` is empty.
        readable_tokens: the most tokens of each prompt that its engine may take from the prefix cache, None
            for all.
        context_tokens: tokens of context that the longest of its prompts needs, 0 where the engine cuts it to
            fit; None for `prompt_tokens`.
        rewritten_from: the client's name for the model when a rule gave the request another, else None.
        text_bytes: canonical bytes of a prompt that is text alone, from which a ratio is learned; 0 for
            others and where the tokens were counted.
        optional: bytes of its parts that engines may leave out, by kind (`epp.apis.rendering`).
        dropped: which of these are not in `text_bytes`.
        regions: regions allowed, None for any.
        subset: addresses of the endpoints that the gateway allows, None for any.
        namespace: key of (model, cache salt, tenant): prompts of different namespaces share nothing.
        blocks: chained keyed hashes (unsigned 64-bit), one per full block, each covering all before it; one
            of the whole prompt where it is shorter than a block.
        prompt_hash: keyed hash of the namespace and the whole prompt; 0 without a prompt.
        block_tokens: tokens per block (fractional when estimated from bytes), the mean over the prompt.
        token_offsets: tokens up to the end of each block where a tokenizer has counted; empty where the mean
            is all that is known.
        engine_blocks: hashes of its first prompt by the token ids of engines' blocks, by how they are hashed
            (`epp.prefix_cache.engine_blocks`); empty where its tokens are not known
            or no engine tells events.
        priority: of the InferenceObjective that it names, 0 for none.
        headers: those that columns of `Snapshot.extra` are made of.
        previous_response: key of the stored response that it is about, 0 for none
            (`epp.signals.stored_responses`).
        stores: the engine is to store its response.
        last_turn: the client says that it is the last one of `session`.
        origin_region: region whose picker forwarded the request first, ``""`` for a client's own.
        origin_decision: that picker's decision.
        came_s: when it came first, of one that comes back because an engine refused it; 0 for any other.
        media: keyed names of its images, recordings and videos, in order, one for the same content.
    """

    decision_id: str = ""
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
    api: str = ""
    opaque: bool = False
    stream: bool = False
    session: str = ""
    program: str = ""
    choices: int = 1
    sequences: int = 1
    more: tuple[RequestInfo, ...] = ()
    prompts: int = 1
    readable_tokens: int | None = None
    context_tokens: int | None = None
    rewritten_from: str | None = None
    text_bytes: int = 0
    optional: Mapping[str, int] = {}
    dropped: frozenset[str] = frozenset()
    regions: frozenset[str] | None = None
    subset: Collection[str] | None = None
    namespace: int = 0
    blocks: Sequence[int] = ()
    prompt_hash: int = 0
    block_tokens: float = 0.0
    token_offsets: Sequence[float] = ()
    engine_blocks: Mapping[Any, Sequence[int]] = {}
    priority: int = 0
    headers: Mapping[str, str] = {}
    previous_response: int = 0
    stores: bool = False
    last_turn: bool = False
    origin_region: str = ""
    origin_decision: str = ""
    came_s: float = 0.0
    media: tuple[str, ...] = ()

    @property
    def tells_hits(self) -> bool:
        """Whether its engine's count of cached tokens can be held against what was expected.

        Not where the engine may read none or a part of the prefix cache. Nor of several prompts or answers:
        vLLM tells those of the last, and answers to one prompt find it cached by each other.
        """
        return self.readable_tokens is None and self.sequences == 1

    @property
    def answers(self) -> int:
        """How many answers it gets."""
        return self.choices * self.prompts

    def tokens_before(self, blocks: int) -> float:
        """Count the tokens in so many of the first blocks."""
        if 0 < blocks <= len(self.token_offsets):
            return self.token_offsets[blocks - 1]
        return blocks * self.block_tokens


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
#: Those that can be unknown of an endpoint, and are filled then with the worst known value.
FILLABLE_COLUMNS = ("rtt_ms", "engine_running", "engine_waiting", "engine_kv_usage", "engine_used_tokens")


class _Column:
    """A named row of a snapshot's block."""

    __slots__ = ("_row",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._row = NUMERIC_COLUMNS.index(name)

    def __get__(self, view: Snapshot, owner: type) -> Floats:
        column: Floats = view.block[self._row]
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
        rtt_ms: round-trip time to each over an open connection.
        cached_tokens: prompt tokens expected in its KV cache, in whole blocks where their size is known.
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
        hit_ratio: cached tokens that its engine had of late over those expected of it, 0..1.5, else 1.
        prefill_base_ms: fixed time of one prefill there, learned by engine class (`epp.signals.rates`).
        prefill_ms_per_token: time of one uncached token, likewise.
        decode_base_ms: time of a token of an answer that is alone in the batch, likewise.
        decode_ms_per_request: what every further answer in the batch adds to it, likewise.
        success: chance that its model answers such a request rightly, given that the tried models did not,
            0..1 (`epp.signals.capability`); 1 for all where nothing is known of any.
        cold_chance: chance that the next request there opens a connection, 0..1 (`epp.signals.paths`); 0
            before any report of connections.
        connect_ms: time to open one there, a round trip where none was seen; 0 likewise.
        upload_rounds: round trips per doubling of a body on a connection that is there, as seen; 1, as on a
            new one, where none was.
        unknown: per column name, a mask of the values that were filled in.
        rtt_sources: where each round trip comes from, as indices of `RTT_SOURCES`; for people, None when not
            recorded.
        models: what the engine of each calls the model; empty when all use its public name.
        extra: further columns, by name, which the policy requires (`epp.policies.base.Column`).
        revisions: revision of each, with `workers` alone.
        workers: who may prefill or encode for these, by role; some may be candidates, too. Empty where
            endpoints have no roles, and for policies that choose no pairs.
        cached_sources: by what the cached tokens of each are known, as indices of `CACHED_SOURCES`; for
            people, None where all are estimated.
    """

    endpoints: tuple[str, ...]
    regions: tuple[str, ...]
    engine_classes: tuple[str, ...]
    block: Floats
    unknown: Mapping[str, Flags] = {}
    rtt_sources: NDArray[np.int8] | None = None
    models: tuple[str, ...] = ()
    extra: Mapping[str, Floats] = {}
    revisions: tuple[str, ...] = ()
    workers: Mapping[Role, Snapshot] = {}
    cached_sources: NDArray[np.int8] | None = None

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

    def __len__(self) -> int:
        """Count the candidates."""
        return len(self.endpoints)

    def at(self, index: int) -> Signals[float]:
        """Return one candidate's numbers."""
        return Signals._make(self.block[:, index].tolist())

    def columns(self) -> Signals[Floats]:
        """Cut every column at once, for formulas that read many."""
        return Signals._make(self.block)


class Ranking(Struct, frozen=True):
    """A policy's answer.

    Attributes:
        costs: one finite cost per endpoint, lower is better.
        terms: what the costs are made of, for people: name -> one value per endpoint. Terms whose names a
            policy lists as additive sum to ``costs``.
        least_first_token_ms: the least time to first token that the request has to expect of any of them, 0
            of a policy that predicts none.
        partners: who does a part for each endpoint, were it chosen: by role, rows of `Snapshot.workers`,
            ``[endpoints, workers at most]``, -1 for nobody: then the endpoint does it itself.
    """

    costs: Floats
    terms: Mapping[str, Floats]
    least_first_token_ms: float = 0.0
    partners: Mapping[Role, Rows] = {}
