"""TLS of the listeners: certificate files, their reload when they change, or a certificate of our own.

Owns what the listeners present. No handshake reads a file: pairs are watched, and one that cannot be used
leaves the last good one in force. The self-signed certificate is for gateways that encrypt and do not verify,
as llm-d's charts set them up (source [E]); it is made anew at every start.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
from typing import TYPE_CHECKING

from epp.errors import ConfigError, gather, raise_all
from epp.feeds.files import WatchedFiles, read_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import grpc

    from epp.config.listen import FileTls, ServerTls

log = logging.getLogger(__name__)

_VALID_DAYS = 3650
#: Key of the gRPC listener's TLS section.
GRPC_SECTION = "listen.tls"


def self_signed(now: dt.datetime) -> tuple[bytes, bytes]:
    """A private key and a certificate for it, both in PEM: ECDSA P-256, valid for ten years.

    Args:
        now: valid from an hour before, so that clocks that go slow accept it.

    Raises:
        ConfigError: the package that makes certificates is not installed.
    """
    try:
        from cryptography import x509  # noqa: PLC0415  # an optional dependency
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError as error:
        fix = "pip install 'gorgo-epp[tls]', or give cert_file and key_file (--cert-path)"
        raise ConfigError("listen", "tls", f"no certificate can be made: {error}", fix) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "gorgo-epp"),
            x509.NameAttribute(NameOID.COMMON_NAME, "gorgo-epp"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


class Pair:
    """A key and its certificate, the last good ones, in PEM; ``ca`` signs clients' certificates."""

    def __init__(self, pem: tuple[bytes, bytes], ca: bytes | None, file: str = "") -> None:
        self.pem, self.ca, self._file = pem, ca, file

    def take(self, contents: Sequence[bytes | None]) -> None:
        """Take a new pair, if it is one."""
        try:
            pem = _checked(contents)
        except ssl.SSLError as error:
            log.error("%s: %s; the last good certificate stays in force", self._file, error)  # noqa: TRY400
            return
        if pem != self.pem:
            self.pem = pem
            log.info("new certificate from %s", self._file)


class Certificates:
    """The certificates of all listeners.

    Args:
        base: folder that relative names are relative to.
        source: name of the configuration file, for errors.

    Attributes:
        watched: files that are to be watched; a listener's once its `context` or `credentials` was made.
    """

    def __init__(self, base: Path, source: str) -> None:
        self._base, self._source = base, source
        self.watched: list[WatchedFiles] = []

    def context(self, tls: FileTls | None, section: str) -> ssl.SSLContext | None:
        """Make what a listener presents, None for plaintext; the gRPC listener speaks HTTP/2 alone, by ALPN.

        Args:
            tls: the listener's section.
            section: its key.

        Raises:
            ConfigError: a file cannot be used.
        """
        if tls is None:
            return None
        pair = self._pair(tls, section)

        def filled() -> ssl.SSLContext:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION  # RFC 9113 section 9.2.1
            if section == GRPC_SECTION:
                context.set_alpn_protocols(["h2"])
            _load(context, pair.pem)
            if pair.ca is not None:
                context.load_verify_locations(cadata=pair.ca.decode("ascii"))
                context.verify_mode = ssl.CERT_REQUIRED
            return context

        try:
            first = filled()
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                self._source, f"{section}.client_ca_file", f"no certificates: {error}"
            ) from error
        pem, current = pair.pem, first

        def renew(handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            # OpenSSL asks at every handshake, server name or not.
            nonlocal pem, current
            if pair.pem is not pem:
                pem, current = pair.pem, filled()
            if current is not first:
                handshake.context = current

        first.sni_callback = renew
        return first

    def credentials(self, tls: ServerTls | None) -> grpc.ServerCredentials | None:
        """Make what a gRPC listener of grpcio's presents, None for plaintext.

        Raises:
            ConfigError: a file cannot be used.
        """
        if tls is None:
            return None
        import grpc  # noqa: PLC0415  # only where grpcio serves

        pair = self._pair(tls, GRPC_SECTION)
        given = pair.pem

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # gRPC asks at every handshake, in a thread of its own; None keeps what it has.
            nonlocal given
            if pair.pem is given:
                return None
            given = pair.pem
            return grpc.ssl_server_certificate_configuration([given], root_certificates=pair.ca)

        first = grpc.ssl_server_certificate_configuration([given], root_certificates=pair.ca)
        return grpc.dynamic_ssl_server_credentials(
            first, fetch, require_client_authentication=pair.ca is not None
        )

    def _pair(self, tls: FileTls, section: str) -> Pair:
        """Read a pair and the CA, and have the files watched.

        Raises:
            ConfigError: naming each file that cannot be used.
        """
        errors: list[ConfigError] = []
        found: dict[str, bytes] = {}
        for name in ("key_file", "cert_file", "client_ca_file"):
            if file := getattr(tls, name):
                with gather(errors):
                    found[name] = _required(self._base / file, self._source, f"{section}.{name}")
        raise_all(errors)
        ca = found.get("client_ca_file")
        if not tls.cert_file:
            return Pair(self_signed(dt.datetime.now(dt.UTC)), ca)
        try:
            pair = Pair(_checked((found["key_file"], found["cert_file"])), ca, tls.cert_file)
        except ssl.SSLError as error:
            raise ConfigError(self._source, section, f"not a certificate and its key: {error}") from error
        paths = self._base / tls.key_file, self._base / tls.cert_file
        self.watched.append(WatchedFiles(paths, pair.take))
        return pair


def _required(path: Path, source: str, key: str) -> bytes:
    try:
        content = read_file(path)
    except OSError as error:
        raise ConfigError(source, key, str(error)) from error
    if content is None:
        raise ConfigError(source, key, f"{path} does not exist")
    return content


def _checked(contents: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    """A key and its certificate. Halves of two pairs are refused: a writer may be between the two files."""
    key, cert = contents
    if key is None or cert is None:
        raise ssl.SSLError("the certificate or its key does not exist")
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), (key, cert))
    return key, cert


def _load(context: ssl.SSLContext, pem: tuple[bytes, bytes]) -> None:
    # OpenSSL reads a pair from files alone; this one is in memory, because there may be no disk to write to.
    with os.fdopen(os.memfd_create("epp-tls"), "wb") as file:
        file.write(pem[0] + b"\n" + pem[1])
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
