"""TLS of what asks endpoints and relays: the picker's probes and the doctor."""

from __future__ import annotations

import ssl


def client_tls(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """What a connection is opened with.

    Args:
        ca_file: who signs certificates of the other side, the system's CAs when empty.
        cert_file: certificate to show, none when empty.
        key_file: its private key.

    Raises:
        ValueError: a file cannot be used; names it, which the errors of the ssl module do not.
    """
    named = f"ca_file {ca_file}"
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            named = f"cert_file {cert_file} with key_file {key_file}"
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error
    return context
