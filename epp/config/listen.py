"""The listeners of `epp serve` and their TLS: a section of its configuration.

Knows addresses as text; who opens a listener splits and checks them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.address import is_loopback
from epp.config.section import Positive, PositiveInt, Section

#: Connections that a listener takes at once where nobody says how many.
MAX_CONNECTIONS = 4096


class FileTls(Section, frozen=True):
    """TLS of a listener whose clients verify: files in PEM, read again when they change, for new connections.

    Attributes:
        cert_file: certificate chain.
        key_file: private key.
        client_ca_file: who signs the certificates that clients must then present (mTLS).
    """

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""

    def __post_init__(self) -> None:
        """Both files, not half of them."""
        if not (self.cert_file and self.key_file):
            raise ValueError("cert_file and key_file are needed")


class ServerTls(FileTls, frozen=True):
    """TLS of the gRPC listener: files, or a certificate of its own.

    Attributes:
        cert_file: certificate chain.
        key_file: private key.
        client_ca_file: who signs the certificates that clients must then present (mTLS).
        self_signed: make a certificate at start instead, for gateways that do not verify (``pip
            install 'gorgo-epp[tls]'``).
    """

    self_signed: bool = False

    def __post_init__(self) -> None:
        """Files, or a certificate of our own, not half of either."""
        if self.self_signed and (self.cert_file or self.key_file):
            raise ValueError("self_signed needs no cert_file or key_file")
        if not self.self_signed and not (self.cert_file and self.key_file):
            raise ValueError("cert_file and key_file are needed, or self_signed")


#: No message of protocol buffers is longer, and the gRPC library takes no larger number.
LONGEST_MESSAGE_BYTES = 2**31 - 1


class Listen(Section, frozen=True):
    """Listeners; loopback unless configured.

    Attributes:
        grpc: ``host:port`` of the ext_proc and health services.
        http: ``host:port`` of /metrics, /readyz, /livez, /decisions/ID and /ui.
        http_names: host names by which clients may ask `listen.http`, beside IP addresses and
            ``localhost``; others get 421, but for /metrics, /readyz and /livez.
        first_token: ``host:port``, or ``unix:/path``, where Envoy reports first tokens; none when empty.
        health: ``host:port`` of a plaintext listener for the gRPC health service alone; none when
            empty.
        transport: ``builtin``, or ``grpcio`` at several times the CPU (``pip install
            'gorgo-epp[grpcio]'``).
        tls: TLS of the gRPC listener, plaintext when absent.
        first_token_tls: TLS of the listener for first tokens. Beyond loopback ask for client
            certificates: who reaches it can release load.
        http_tls: TLS of the HTTP listener.
        links: titles and addresses for the live page to link to, e.g. your dashboard.
        ui: the live page at /ui, and /preview; by default where `listen.http` is on loopback or asks
            for client certificates.
        stall_limit_s: stall of the event loop after which `/livez` fails and the process logs the
            loop's stack and ends with status 70. Readiness fails after half of it.
        max_connections: connections to each listener, at most an eighth of ``ulimit -n``. One address
            has at most half, but for first tokens; some more are kept for probes. An Envoy has one or
            two for each worker, and eight for first tokens.
        max_receive_bytes: longest gRPC message; 0 for the longest body (at least 32 MiB) and its
            envelope.
    """

    grpc: str = "127.0.0.1:9002"
    http: str = "127.0.0.1:9090"
    http_names: list[str] = []
    first_token: str = "127.0.0.1:9003"  # noqa: S105  # an address
    health: str = ""
    transport: Literal["builtin", "grpcio"] = "builtin"
    tls: ServerTls | None = None
    first_token_tls: FileTls | None = None
    http_tls: FileTls | None = None
    ui: bool | None = None
    links: dict[str, str] = {}
    stall_limit_s: Positive = 5.0
    max_connections: PositiveInt = MAX_CONNECTIONS
    max_receive_bytes: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_MESSAGE_BYTES)] = 0

    @property
    def serves_ui(self) -> bool:
        """Whether the live page is served."""
        if self.ui is not None:
            return self.ui
        authenticated = self.http_tls is not None and bool(self.http_tls.client_ca_file)
        return authenticated or is_loopback(self.http.rpartition(":")[0].strip("[]"))
