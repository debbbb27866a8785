"""Settings of an Envoy in front of the picker: one plain frozen value with documented defaults.

Knows nothing of Envoy's API and reads no file. The rest of this folder turns it into configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from epp.config.eds import socket_name
from epp.config.retries import MAX_RETRIES
from epp.errors import ConfigError

if TYPE_CHECKING:
    from epp.config.federation import Federation
    from epp.config.relays import Relays
    from epp.config.schema import RegionRule
    from epp.types import Endpoint

MIB = 1024 * 1024
MESSAGE_TIMEOUT_MS = 250


class Variant(StrEnum):
    """How the picker is asked and how its answer chooses the upstream.

    ``standalone``: the request body is buffered, responses do not pass the picker, `override_host` sends the
    request to the chosen endpoint and falls back to least-request.
    ``original-dst``: as above, but Envoy connects to whatever allowed address the picker names; without a
    decision there is no upstream, so it fails closed.
    ``full-duplex``: headers, bodies and trailers of both directions stream through the picker, as foreign
    gateways impose it.
    """

    STANDALONE = "standalone"
    ORIGINAL_DST = "original-dst"
    FULL_DUPLEX = "full-duplex"


CLIENTS = "requests"
"""Name of the listener that clients connect to."""

SYSTEM_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian, Alpine and Envoy's images keep the system's certificate authorities."""

#: Headers of a request, as many as vLLM takes (``--h11-max-header-count``).
MOST_HEADERS = 256

#: First versions of Envoy that send a refused request back, and with all that we configure.
PUT_BACK_SINCE, FULL_FEATURED = (1, 37), (1, 38)

#: Longest time that Envoy is given, in seconds: it refuses durations over 292 years.
MOST_S = 1e9


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS by files in PEM.

    Attributes:
        ca_file: who signs the peer's certificate; for an upstream ``""`` means the system's certificate
            authorities.
        cert_file: own certificate chain, ``""`` for none.
        key_file: own private key, ``""`` for none.
        server_name: SNI and certificate name of an upstream, ``""`` for its host.
        insecure: whether an upstream may show any certificate.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """One Envoy, one pool, one picker.

    Attributes:
        endpoints: the pool.
        variant: see `Variant`.
        listener_host: address that clients connect to.
        listener_port: its port; 0 lets the system choose.
        admin_port: port of Envoy's admin interface, always on 127.0.0.1; 0 lets the system choose.
        picker_host: address of the picker's gRPC listener.
        picker_port: its port.
        picker_tls: TLS towards the picker, plaintext when None.
        fallback_pickers: host and port of other pickers of the pool, which share with this one. They are
            asked in turns while this one is away, and verified by its name.
        message_timeout_ms: longest wait for one answer of the picker, so what a hung picker costs a request.
            Envoy applies no such limit in full duplex.
        queue_wait_s: longest wait that the picker may ask for where requests wait in it.
        queue_requests: requests of one priority that may wait in it; circuit breakers have room for twice as
            many.
        stall_limit_s: longest time for which the picker may stand still: then requests that wait there go on
            without it. Not in full duplex.
        picker_keepalive_s: in full duplex, how often an HTTP/2 ping goes to the picker, and how long it may
            go unanswered; there, and with other pickers to fall back to, the same of health checks.
        max_body_bytes: longest request body; more is answered with 413.
        max_heap_bytes: memory at which Envoy sheds load. Size it as `max_body_bytes` times the number of long
            requests that wait for their first byte at one moment.
        upstream_ca_file: who signs the endpoints' certificates, the system's authorities when empty.
        upstream_insecure: whether endpoints may show any certificate.
        upstream_idle_timeout_s: an idle upstream connection is closed by Envoy after this. Keep it below the
            engine's own keep-alive (uvicorn, so vLLM and SGLang: 5 s unless told otherwise) or a request can
            meet a connection that the engine is just closing.
        preconnect_ratio: connections held ready per request in flight to an endpoint, 1 to 3.
        retries: further attempts when an endpoint cannot be reached, or has no room and the picker allows it;
            each goes to the next one of the decision.
        stream_idle_timeout_s: a request without a byte in either direction for this long is ended. There is
            no limit on a request's whole duration.
        health_check_path: path of active health checks, none when empty.
        eject_s: first ejection of an endpoint whose connections fail, multiplied by the number of ejections,
            at most ten times this.
        eds_path: when set, endpoints are read from this file, which must be there when Envoy starts. Envoy
            follows its replacement by rename, so that the pool changes without a restart.
        destination_patterns: `original-dst` only: RE2 patterns of further ``ip:port`` destinations that the
            picker may name beside `endpoints`.
        access_log: whether one JSON line a request goes to stdout.
        observe: whether Envoy reports first tokens and ended requests to the picker. Full duplex shows it the
            response itself.
        first_token_host: address of the picker's listener for first tokens, `picker_host` when empty.
        first_token_port: its port; 0 sends no first tokens, so that the picker learns of them at the end.
        first_token_path: its Unix socket, instead of host and port; none when empty.
        first_token_tls: TLS towards it, plaintext when None.
        report_interval_ms: longest time that a report waits in Envoy for others to travel with.
        strip_accept_encoding: drop ``accept-encoding`` from requests to paths whose answers carry ``usage``,
            because nothing can be read of a compressed answer.
        served_model_header: whether responses name the model that served them, by the engine's name
            for it (``x-epp-served-model``), and how many others are left to try (``x-epp-untried-models``).
        endpoint_header: whether responses name the endpoint that served them (``x-epp-endpoint``).
        relays: `standalone` only: endpoints are reached through a relay in each region, none when None.
        federation: regions are peers: this Envoy is `federation.region`'s, `relays` has the addresses of all
            regions' Envoys, and the pool is the own region's. Without a region it is the entry before all.
        region_rules: rules that bind requests to regions, where these are peers.
        open_paths: paths that reach endpoints beside those of APIs (`epp.apis.paths`).
        fail_closed: 503 to requests without a decision, so while the picker is dead; always so in
            `original-dst`.
        envoy_version: oldest Envoy that must take the configuration, major and minor; what it does not know
            is left out (docs/envoy-versions.md).
    """

    endpoints: tuple[Endpoint, ...]
    variant: Variant = Variant.STANDALONE
    listener_host: str = "127.0.0.1"
    listener_port: int = 8080
    admin_port: int = 9901
    picker_host: str = "127.0.0.1"
    picker_port: int = 9002
    picker_tls: TlsFiles | None = None
    fallback_pickers: tuple[tuple[str, int], ...] = ()
    message_timeout_ms: int = MESSAGE_TIMEOUT_MS
    queue_wait_s: float = 30.0
    queue_requests: int = 5000
    stall_limit_s: float = 5.0
    picker_keepalive_s: float = 1.0
    max_body_bytes: int = 32 * MIB
    max_heap_bytes: int = 4096 * MIB
    upstream_ca_file: str = ""
    upstream_insecure: bool = False
    upstream_idle_timeout_s: float = 4.0
    preconnect_ratio: float = 1.5
    retries: int = MAX_RETRIES
    stream_idle_timeout_s: float = 900.0
    health_check_path: str = ""
    eject_s: float = 5.0
    eds_path: str = ""
    destination_patterns: tuple[str, ...] = ()
    access_log: bool = False
    observe: bool = True
    first_token_host: str = ""
    first_token_port: int = 9003
    first_token_path: str = ""
    first_token_tls: TlsFiles | None = None
    report_interval_ms: int = 200
    strip_accept_encoding: bool = False
    served_model_header: bool = False
    endpoint_header: bool = False
    relays: Relays | None = None
    federation: Federation | None = None
    region_rules: tuple[RegionRule, ...] = ()
    open_paths: tuple[str, ...] = ()
    fail_closed: bool = False
    envoy_version: tuple[int, int] = FULL_FEATURED

    @property
    def reports_first_tokens(self) -> bool:
        """Whether there is a listener to report first tokens to."""
        return self.observed and bool(self.first_token_path or self.first_token_port)

    @property
    def observed(self) -> bool:
        """Whether Envoy itself reports on responses: asked to, and the picker does not see them anyway."""
        return self.observe and self.variant is not Variant.FULL_DUPLEX

    @property
    def relayed(self) -> bool:
        """Whether endpoints are reached through relays, whose attempts are not ours."""
        return self.relays is not None and self.federation is None

    @property
    def restores_models(self) -> bool:
        """Whether Envoy itself gives answers the public name of a model that was rewritten for an endpoint.

        In full duplex answers pass the picker, which does that.
        """
        return self.variant is not Variant.FULL_DUPLEX

    @property
    def puts_back(self) -> bool:
        """Whether a request that an engine refuses may come back to the picker, where it waits for another.

        In full duplex an engine may refuse what is still being sent, which cannot be sent again. Before 1.37
        a route that follows redirects holds up bodies that are longer than a connection's buffer.
        """
        may = self.variant is not Variant.FULL_DUPLEX and self.relays is None
        return may and self.queue_wait_s > 0 and self.envoy_version >= PUT_BACK_SINCE

    @property
    def socket_names(self) -> list[str]:
        """Name the transport sockets of endpoints with TLS.

        With an EDS file endpoints may join later: where a CA is configured there is one for those verified by
        name.
        """
        later = {"name"} if self.eds_path and self.upstream_ca_file else set[str]()
        return sorted({socket_name(endpoint) for endpoint in self.endpoints} - {""} | later)

    @property
    def rewrites_paths(self) -> bool:
        """Whether any endpoint has something before its paths."""
        return any(endpoint.base_path for endpoint in self.endpoints)

    @property
    def forwards(self) -> dict[str, str]:
        """Peer region -> loopback address of the way there; none where regions are no peers."""
        if self.federation is None or self.relays is None:
            return {}
        return self.federation.forwards(self.relays.regions)

    def __post_init__(self) -> None:
        """Reject what Envoy would reject later, or accept and then fail on.

        Raises:
            ConfigError: naming the field.
        """
        # Written to the millisecond; 0 would mean no limit at all.
        if not 0.001 <= self.upstream_idle_timeout_s <= MOST_S:
            raise ConfigError("envoy", "upstream_idle_timeout_s", f"must be from 0.001 to {MOST_S:.0f}")
        if not 1 <= self.preconnect_ratio <= 3:
            raise ConfigError("envoy", "preconnect_ratio", "must be from 1 to 3, the range that Envoy takes")
        if self.variant is not Variant.STANDALONE and self.relays is not None:
            raise ConfigError(
                "envoy", "relays", f"the {self.variant} variant does not go through relays", "use standalone"
            )
        if self.rewrites_paths and (self.relayed or self.variant is Variant.ORIGINAL_DST):
            raise ConfigError("endpoints", "base_path", "neither relays nor original-dst can have it")
        if self.rewrites_paths and self.health_check_path:
            fix = "leave health checks to the picker's probes"
            raise ConfigError("endpoints", "base_path", "Envoy's own health checks know no such path", fix)
        if self.variant is not Variant.ORIGINAL_DST and self.destination_patterns:
            raise ConfigError(
                "envoy", "destination_patterns", "only the original-dst variant takes them", "remove it"
            )
