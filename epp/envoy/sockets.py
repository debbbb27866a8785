"""TLS of a connection: towards clients, towards endpoints and the picker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.address import is_ip
from epp.envoy import messages as api
from epp.envoy.settings import SYSTEM_CA_FILE

if TYPE_CHECKING:
    from epp.envoy.settings import TlsFiles


def downstream_tls(files: TlsFiles, *peers: str) -> api.core.TransportSocket:
    """The listener's certificate; clients need one for a name of ``peers``."""
    common = api.tls.CommonTlsContext(
        alpn_protocols=["h2", "http/1.1"],
        tls_certificates=[_certificate(files)],
        validation_context=_trust(files.ca_file, *peers),
    )
    return api.tls_socket(
        api.tls.DownstreamTlsContext(common_tls_context=common, require_client_certificate=True)
    )


def upstream_tls(
    files: TlsFiles, peer: str, alpn: str = "http/1.1", sni: str = ""
) -> api.core.TransportSocket:
    """TLS that verifies the peer: by the host's own name when ``peer`` is empty, else by this name or IP.

    ``sni`` asks for another name than the one verified.
    """
    context = api.tls.UpstreamTlsContext(
        sni=sni or ("" if not peer or is_ip(peer) else peer),
        auto_host_sni=not peer,
        auto_sni_san_validation=not (peer or files.insecure),
        common_tls_context=api.tls.CommonTlsContext(
            validation_context=None if files.insecure else _trust(files.ca_file or SYSTEM_CA_FILE, peer),
            tls_certificates=[_certificate(files)] if files.cert_file else [],
            alpn_protocols=[alpn],
        ),
    )
    return api.tls_socket(context)


def trusts_nobody() -> api.core.TransportSocket:
    """TLS that no certificate passes: for an endpoint whose own transport socket is not configured."""
    validation = api.tls.CertificateValidationContext(verify_certificate_hash=["00" * 32])
    common = api.tls.CommonTlsContext(validation_context=validation)
    return api.tls_socket(api.tls.UpstreamTlsContext(common_tls_context=common))


def _certificate(files: TlsFiles) -> api.tls.TlsCertificate:
    return api.tls.TlsCertificate(
        certificate_chain=api.core.DataSource(filename=files.cert_file),
        private_key=api.core.DataSource(filename=files.key_file),
    )


def _trust(ca_file: str, *peers: str) -> api.tls.CertificateValidationContext:
    """Who must have signed the peer's certificate, valid for one of these names or addresses."""
    san = api.tls.SubjectAltNameMatcherSanType
    names = [
        api.tls.SubjectAltNameMatcher(
            san_type=san.IP_ADDRESS if is_ip(peer) else san.DNS, matcher=api.matcher.StringMatcher(exact=peer)
        )
        for peer in peers
        if peer
    ]
    return api.tls.CertificateValidationContext(
        trusted_ca=api.core.DataSource(filename=ca_file),
        match_typed_subject_alt_names=names,
    )
