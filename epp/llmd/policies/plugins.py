"""What llm-d's filters and scorers (`filters`, `scorers`) share: parameters, columns, sessions.

Sources are files of llm-d/llm-d-router at ebab687, below ``pkg/epp/framework/plugins``. Fields are the
plugins' parameters with their defaults. Scores are 0..1, higher is better; a filter says who stays. Each is
given the endpoints that the filters before it kept.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct, json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.types import Flags, Floats, RequestInfo, Snapshot

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
PositiveInt = Annotated[int, Meta(gt=0)]


class Column(Struct, frozen=True):
    """A column of `Snapshot.extra` that plugins read (`epp.llmd.policies.columns`).

    Attributes:
        name: in snapshots and records.
        headers: request headers that it is made of.
    """

    name: str
    headers: tuple[str, ...] = ()


class Told(Column, frozen=True):
    """A number that the first of the headers tells."""


class Label(Column, frozen=True, kw_only=True):
    """1 where an endpoint's label has the header's value."""

    label: str


class ModelLabel(Column, frozen=True, kw_only=True):
    """1 where an endpoint's label has the value of the header, else the model's name."""

    label: str


class Token(Column, frozen=True):
    """1 for the endpoint that the header names in base64; answers tell clients theirs in it."""


class Session(Column, frozen=True, kw_only=True):
    """1 for the endpoint that a session is bound to.

    Attributes:
        ttl_s: how long after its last request.
        sources: where its id stands, the first that tells one: header, and name of a cookie in it or ``""``.
    """

    ttl_s: float
    sources: tuple[tuple[str, str], ...]


class ColdPlace(Column, frozen=True, kw_only=True):
    """An endpoint's place among the ``most`` that had cold requests last, oldest first; -1 for the others."""

    most: int


class Media(Column, frozen=True, kw_only=True):
    """The share of a request's media that an endpoint had among its ``most`` last ones; 0 without media."""

    most: int


class Indexed(Column, frozen=True, kw_only=True):
    """The prompt's tokens that an index of its own, of this capacity, believes an endpoint to have cached."""

    capacity_tokens: int


class Admitted(Column, frozen=True, kw_only=True):
    """1 where an endpoint's labels pass a filter of labels."""

    admits: Callable[[Mapping[str, str]], bool]


#: What `lora_score` says of an adapter, the request's priority, and GPU utilization, -1 where none is told.
LORA, PRIORITY, GPU = Column("lora"), Column("priority"), Column("gpu_utilization")
#: Latency objectives in ms, the newer header first.
TTFT_SLO = Told("ttft_slo_ms", ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"))
TPOT_SLO = Told("tpot_slo_ms", ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"))
#: Columns that the profile predicts, in ms.
TTFT, TTFT_HEADROOM, TPOT_HEADROOM = "ttft_ms", "ttft_headroom_ms", "tpot_headroom_ms"


class Plugin(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Hold a plugin's parameters.

    Attributes:
        prefix_match_info_producer_name: which index is asked; only those of a `PrefixReader` matter.
        in_flight_load_producer_name: which counters are asked; here there is one set.
        latency_prediction_info_producer_name: which predictor is asked; likewise.
    """

    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    latency_prediction_info_producer_name: str = ""

    @property
    def required_columns(self) -> tuple[Column, ...]:
        """List the columns of `Snapshot.extra` that it reads."""
        return ()

    @property
    def predicts(self) -> bool:
        """Tell whether it reads predicted latencies."""
        return False


class PrefixReader(Plugin, frozen=True):
    """Read what endpoints have cached of a prompt.

    Attributes:
        index_tokens: capacity of an index of its own, 0 for the picker's; the translation of a configuration
            fills it in.
        precise: the picker's is told by engines, whose blocks are all whole; likewise.
    """

    index_tokens: int = 0
    precise: bool = False

    @property
    def required_columns(self) -> tuple[Column, ...]:
        tokens = self.index_tokens
        return (Indexed(self._column, capacity_tokens=tokens),) if tokens else ()

    @property
    def _column(self) -> str:
        return f"indexed:{self.index_tokens}"

    def in_blocks(self, request: RequestInfo, snapshot: Snapshot) -> tuple[Floats, float]:
        """Return the cached tokens and the prompt's, both in whole blocks."""
        block_tokens = 0.0 if self.precise else request.block_tokens
        cached = snapshot.extra[self._column] if self.index_tokens else snapshot.cached_tokens
        return in_blocks(request.prompt_tokens, block_tokens, cached)


def in_blocks(prompt_tokens: int, block_tokens: float, cached: Floats) -> tuple[Floats, float]:
    """Round cached tokens down and a prompt's up to whole blocks; the second is never 0.

    A partial last block counts as one, and is cached where the whole prompt is: a prompt of 65 tokens has two
    blocks of 64 (``requestcontrol/dataproducer/prefixhash``). Where no size of blocks is known, as in old
    records, every token counts.
    """
    if not block_tokens:
        return np.minimum(cached, prompt_tokens), max(float(prompt_tokens), 1.0)
    most = max(math.ceil(prompt_tokens / block_tokens - 1e-9), 1) * block_tokens
    whole = np.floor(cached / block_tokens + 1e-9) * block_tokens
    return np.where((cached >= prompt_tokens) & (prompt_tokens > 0), most, whole), most


def told_model(headers: Iterable[str], request: RequestInfo) -> str:
    """Return the model that a header names, else the request's."""
    return next((request.headers[key] for key in headers if request.headers.get(key)), request.model)


class Scorer(Plugin, frozen=True):
    """Score endpoints from 0 to 1."""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        """Compute a score for each endpoint."""
        raise NotImplementedError


class Filter(Plugin, frozen=True, dict=True):
    """Keep some endpoints: by their labels, or by request and signals.

    Attributes:
        before_profile: it stands before every profile and leaves the order of the profile's filters alone.
    """

    before_profile: ClassVar[bool] = False

    @cached_property
    def admitted(self) -> Admitted:
        """The column of what it says of labels; two profiles may give different filters one name."""
        return Admitted(f"admitted:{json.encode(self).decode()}", admits=self.admits)

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an endpoint with these labels may serve at all."""
        return True

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        """Say who stays; ``draw`` is a uniform number of this request and plugin."""
        return np.ones(len(snapshot), np.bool_)


def by_labels(found: Filter) -> bool:
    """Tell whether it asks for labels alone."""
    return type(found).admits is not Filter.admits


def comes_first(found: Filter) -> bool:
    """Tell whether filters of labels behind it are asked before all else."""
    return by_labels(found) or found.before_profile


class Attribute(Plugin, frozen=True):
    """Read the GPU utilization that DCGM Exporter tells, the one attribute that is read here."""

    producer: Literal["dcgm-extractor"]

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return (GPU,)

    def shown(self, snapshot: Snapshot) -> Floats:
        """Return the attribute, -1 where an endpoint has none."""
        return snapshot.extra.get(GPU.name, np.full(len(snapshot), -1.0))


class Objectives(Plugin, frozen=True):
    """Compare predicted latencies with a request's SLOs."""

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return TTFT_SLO, TPOT_SLO

    @property
    def predicts(self) -> bool:
        return True


class _Config(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Hold a part of a plugin's parameters."""


class TokenHeader(_Config, frozen=True):
    """Name the header in which a client brings its endpoint back."""

    header: str = ""


class SessionSource(_Config, frozen=True):
    """Say where a session's id stands: a header (``cookie:NAME`` for a cookie), or what a plugin found."""

    header: str = ""
    attribute: str = ""
    producer: str = ""


class SessionIds(_Config, frozen=True):
    """Say how sessions are known, and for how long."""

    sources: list[SessionSource] = []
    eviction_ttl_seconds: NotNegative = 0.0
    eviction_sweep_seconds: NotNegative = 0.0


class Bound(Plugin, frozen=True):
    """Know the endpoint that a session is bound to: ``scheduling/util/sessionaffinity``.

    By ``encoded_endpoint_header`` the answer names it in a header, which the client sends again. By
    ``session_id`` the picker remembers it from the session's first request on, for some seconds after the
    last; a session whose endpoint is no candidate any more is bound anew.
    """

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: TokenHeader = TokenHeader()
    session_id_config: SessionIds = SessionIds()
    profile_name: str = ""

    @property
    def required_columns(self) -> tuple[Column, ...]:
        if self.strategy == "encoded_endpoint_header":
            header = self.encoded_endpoint_header_config.header.strip().lower() or "x-session-token"
            return (Token(f"token:{header}", (header,)),)
        config = self.session_id_config
        ttl_s = config.eviction_ttl_seconds or 300.0
        told = [source.header.lower() for source in config.sources] or ["x-session-id"]
        name, parts = f"session:{ttl_s:g}:{','.join(told)}", [each.partition(":") for each in told]
        sources = tuple((header, cookie) for header, _, cookie in parts)
        return (Session(name, tuple(header for header, _ in sources), ttl_s=ttl_s, sources=sources),)

    def bound(self, snapshot: Snapshot) -> Floats:
        """Mark the session's endpoint with 1."""
        return snapshot.extra.get(self.required_columns[0].name, np.zeros(len(snapshot)))
