"""TLS of a connection: towards clients, towards endpoints and the picker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.address import is_ip
from epp.envoy import messages as api

if TYPE_CHECKING:
    from epp.envoy.settings import TlsFiles

SYSTEM_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian, Alpine and Envoy's images keep the system's certificate authorities."""


def downstream_tls(files: TlsFiles, peer: str = "") -> api.core.TransportSocket:
    """The listener's certificate; with a ``ca_file`` clients need one for the name ``peer`` if given."""
    common = api.tls.CommonTlsContext(
        alpn_protocols=["h2", "http/1.1"],
        tls_certificates=[
            api.tls.TlsCertificate(
                certificate_chain=api.core.DataSource(filename=files.cert_file),
                private_key=api.core.DataSource(filename=files.key_file),
            )
        ],
    )
    if files.ca_file:
        common.validation_context = api.tls.CertificateValidationContext(
            trusted_ca=api.core.DataSource(filename=files.ca_file),
            match_typed_subject_alt_names=[_name(peer)] if peer else [],
        )
    context = api.tls.DownstreamTlsContext(
        common_tls_context=common, require_client_certificate=bool(files.ca_file) or None
    )
    return api.core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=api.pack(context))


def upstream_tls(files: TlsFiles, peer: str, alpn: str = "http/1.1") -> api.core.TransportSocket:
    """TLS that verifies the peer: by the host's own name when ``peer`` is empty, else by this name or IP."""
    validation = api.tls.CertificateValidationContext(
        trusted_ca=api.core.DataSource(filename=files.ca_file or SYSTEM_CA_FILE)
    )
    if peer:
        validation.match_typed_subject_alt_names = [_name(peer)]
    certificates = []
    if files.cert_file:
        certificates.append(
            api.tls.TlsCertificate(
                certificate_chain=api.core.DataSource(filename=files.cert_file),
                private_key=api.core.DataSource(filename=files.key_file),
            )
        )
    context = api.tls.UpstreamTlsContext(
        sni="" if not peer or is_ip(peer) else peer,
        auto_host_sni=not peer,
        auto_sni_san_validation=not peer,
        common_tls_context=api.tls.CommonTlsContext(
            validation_context=validation, tls_certificates=certificates, alpn_protocols=[alpn]
        ),
    )
    return api.core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=api.pack(context))


def trusts_nobody() -> api.core.TransportSocket:
    """TLS that no certificate passes: for an endpoint whose own transport socket is not configured."""
    validation = api.tls.CertificateValidationContext(verify_certificate_hash=["00" * 32])
    context = api.tls.UpstreamTlsContext(
        common_tls_context=api.tls.CommonTlsContext(validation_context=validation)
    )
    return api.core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=api.pack(context))


def _name(peer: str) -> api.tls.SubjectAltNameMatcher:
    """A name or address that the certificate must be valid for."""
    san = api.tls.SubjectAltNameMatcherSanType
    return api.tls.SubjectAltNameMatcher(
        san_type=san.IP_ADDRESS if is_ip(peer) else san.DNS,
        matcher=api.matcher.StringMatcher(exact=peer),
    )
