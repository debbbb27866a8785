"""What llm-d's filters and scorers (`llm_d_filters`, `llm_d_scorers`) share: parameters, columns, sessions.

Sources are files of llm-d/llm-d-router at ebab687, below ``pkg/epp/framework/plugins``. Fields are the
plugins' parameters with their defaults. Scores are 0..1, higher is better; a filter says who stays. Each is
given the endpoints that the filters before it kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Flags, Floats, RequestInfo, Snapshot

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
PositiveInt = Annotated[int, Meta(gt=0)]

#: Columns of `Snapshot.extra`; `epp.schedule.extras` fills them for the plugins that ask.
COLD_PLACE, LORA, PRIORITY, GPU = "cold_place", "lora", "priority", "gpu_utilization"
TTFT_SLO, TPOT_SLO = "ttft_slo_ms", "tpot_slo_ms"
#: Beginnings of names of columns, with what they are made of behind.
TOKEN, SESSION = "token:", "session:"
#: Columns that the profile predicts, in ms.
TTFT, TTFT_HEADROOM, TPOT_HEADROOM = "ttft_ms", "ttft_headroom_ms", "tpot_headroom_ms"


class Plugin(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Hold a plugin's parameters.

    Attributes:
        prefix_match_info_producer_name: which index is asked; here there is one.
        in_flight_load_producer_name: which counters are asked; likewise.
        latency_prediction_info_producer_name: which predictor is asked; likewise.
    """

    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    latency_prediction_info_producer_name: str = ""

    @property
    def asks(self) -> tuple[str, ...]:
        """Name the columns that it reads beyond the snapshot's own."""
        return ()

    @property
    def predicts(self) -> bool:
        """Tell whether it reads predicted latencies."""
        return False


class Scorer(Plugin, frozen=True):
    """Score endpoints from 0 to 1."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        """Compute a score for each endpoint."""
        raise NotImplementedError


class Filter(Plugin, frozen=True):
    """Keep some endpoints: by their labels, before all else, or by request and signals."""

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an endpoint with these labels may serve at all."""
        return True

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        """Say who stays; ``draw`` is a uniform number of this request and plugin."""
        return np.ones(len(fleet), np.bool_)


class Attribute(Plugin, frozen=True):
    """Read the GPU utilization that DCGM Exporter tells, the one attribute that is read here."""

    producer: Literal["dcgm-extractor"]

    @property
    def asks(self) -> tuple[str, ...]:
        return (GPU,)

    def shown(self, fleet: Snapshot) -> Floats:
        """Return the attribute, -1 where an endpoint has none."""
        return fleet.extra.get(GPU, np.full(len(fleet), -1.0))


class Objectives(Plugin, frozen=True):
    """Compare predicted latencies with a request's SLOs."""

    @property
    def asks(self) -> tuple[str, ...]:
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
    def asks(self) -> tuple[str, ...]:
        if self.strategy == "encoded_endpoint_header":
            header = self.encoded_endpoint_header_config.header.strip().lower()
            return (f"{TOKEN}{header or 'x-session-token'}",)
        config = self.session_id_config
        headers = ",".join(source.header.lower() for source in config.sources) or "x-session-id"
        return (f"{SESSION}{config.eviction_ttl_seconds or 300.0:g}:{headers}",)

    def bound(self, fleet: Snapshot) -> Floats:
        """Mark the session's endpoint with 1."""
        return fleet.extra.get(self.asks[0], np.zeros(len(fleet)))
