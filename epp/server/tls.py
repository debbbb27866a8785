"""TLS of the listeners: certificate files, their reload when they change, or a certificate of our own.

Owns what the listeners present. A reloaded pair that cannot be used leaves the last good one in force, said
once. The self-signed certificate is for gateways that encrypt and do not verify, as llm-d's charts set them
up (source [E]); it is made anew at every start.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
from typing import TYPE_CHECKING

from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import grpc

    from epp.config.listen import FileTls, ServerTls

log = logging.getLogger(__name__)

_VALID_DAYS = 3650


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
    """A key and its certificate, read from files that may be replaced.

    Args:
        tls: the files.
        base: folder that relative names are relative to.
        source: name of the configuration file, for errors.

    Raises:
        ConfigError: a file cannot be read, or the two do not belong together.
    """

    def __init__(self, tls: FileTls, base: Path, source: str) -> None:
        self._key, self._cert = base / tls.key_file, base / tls.cert_file
        self._seen = self._stamp()
        for key, path in (("key_file", self._key), ("cert_file", self._cert)):
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(source, f"listen.tls.{key}", str(error)) from error
        try:
            self.pem = self._read()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(source, "listen.tls", f"not a certificate and its key: {error}") from error

    def changed(self) -> bool:
        """Whether the files hold another usable pair than before; ``pem`` is that pair then."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            pem = self._read()
        except (OSError, ssl.SSLError) as error:
            log.error("%s: %s; the last good certificate stays in force", self._cert, error)  # noqa: TRY400
            return False
        changed, self.pem = pem != self.pem, pem
        return changed

    def _stamp(self) -> tuple[object, ...]:
        """What shows that a file was replaced, renamed onto, or that a symbolic link was turned."""
        stamps: list[object] = []
        for path in (self._key, self._cert):
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(stamps)

    def _read(self) -> tuple[bytes, bytes]:
        # Loading them together refuses halves of two pairs, which is what a writer between two files leaves.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)
        return self._key.read_bytes(), self._cert.read_bytes()


def grpc_credentials(tls: ServerTls | None, base: Path, source: str) -> grpc.ServerCredentials | None:
    """What a gRPC listener of grpcio's presents, None for plaintext.

    Raises:
        ConfigError: a file cannot be used.
    """
    if tls is None:
        return None
    import grpc  # noqa: PLC0415  # only where grpcio serves

    ca = _client_ca(tls, base, source)
    if tls.self_signed:
        pem = self_signed(dt.datetime.now(dt.UTC))
        return grpc.ssl_server_credentials([pem], root_certificates=ca, require_client_auth=ca is not None)
    pair = Pair(tls, base, source)
    if not tls.reload:
        return grpc.ssl_server_credentials(
            [pair.pem], root_certificates=ca, require_client_auth=ca is not None
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks at every handshake; None keeps what it has.
        if not pair.changed():
            return None
        log.info("new certificate from %s", tls.cert_file)
        return grpc.ssl_server_certificate_configuration([pair.pem], root_certificates=ca)

    first = grpc.ssl_server_certificate_configuration([pair.pem], root_certificates=ca)
    return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=ca is not None)


def rpc_context(tls: ServerTls | None, base: Path, source: str) -> ssl.SSLContext | None:
    """What the picker's own gRPC listener presents, None for plaintext: HTTP/2 by ALPN, TLS 1.2 and newer.

    A pair that was replaced is presented from the next handshake on, as grpcio does.

    Raises:
        ConfigError: a file cannot be used.
    """
    if tls is None:
        return None
    ca = _client_ca(tls, base, source)
    if tls.self_signed:
        return _h2_context(self_signed(dt.datetime.now(dt.UTC)), ca, source)
    pair = Pair(tls, base, source)
    first = _h2_context(pair.pem, ca, source)
    if tls.reload:
        first.sni_callback = _renewing(pair, first, ca, source)
    return first


def _renewing(
    pair: Pair, first: ssl.SSLContext, ca: bytes | None, source: str
) -> Callable[[ssl.SSLSocket | ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """What OpenSSL asks at every handshake, server name or not: it may present another pair."""
    current = first

    def renew(handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        nonlocal current
        if pair.changed():
            log.info("new certificate")
            current = _h2_context(pair.pem, ca, source)
        if current is not first:
            handshake.context = current

    return renew


def _h2_context(pem: tuple[bytes, bytes], ca: bytes | None, source: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION  # RFC 9113 section 9.2.1
    context.set_alpn_protocols(["h2"])
    # OpenSSL reads a pair from files alone; this one is in memory, because there may be no disk to write to.
    with os.fdopen(os.memfd_create("epp-tls"), "wb") as file:
        file.write(pem[0] + b"\n" + pem[1])
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    if ca is not None:
        try:
            context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(source, "listen.tls.client_ca_file", f"no certificates: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def http_context(tls: FileTls | None, base: Path, source: str) -> ssl.SSLContext | None:
    """The same for the HTTP listener; reload is honoured for connections made after a change.

    Raises:
        ConfigError: a file cannot be used.
    """
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = Pair(tls, base, source)
    context.load_cert_chain(base / tls.cert_file, base / tls.key_file)
    if tls.client_ca_file:
        _client_ca(tls, base, source)
        context.load_verify_locations(base / tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    if tls.reload:

        def renew(_socket: object, _name: object, _context: ssl.SSLContext) -> None:
            if pair.changed():
                context.load_cert_chain(base / tls.cert_file, base / tls.key_file)

        context.sni_callback = renew
    return context


def _client_ca(tls: FileTls, base: Path, source: str) -> bytes | None:
    if not tls.client_ca_file:
        return None
    try:
        return (base / tls.client_ca_file).read_bytes()
    except OSError as error:
        raise ConfigError(source, "listen.tls.client_ca_file", str(error)) from error
