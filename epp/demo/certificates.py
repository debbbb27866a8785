"""Certificates of an afternoon: an authority and what it signs, for demonstrations of mutual TLS."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def make(folder: Path, names: Mapping[str, str]) -> None:
    """Write ``ca.crt``, and for each file name a ``.crt`` and ``.key`` that it signed for a DNS name.

    Raises:
        EppError: the package that makes certificates is not installed.
    """
    try:
        from cryptography import x509  # noqa: PLC0415  # an optional dependency
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError as error:
        raise EppError(f"no certificates can be made: {error}; pip install 'gorgo-epp[tls]'") from error
    now = dt.datetime.now(dt.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "demo authority")])

    def signed(name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        subject = authority if ca else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        certificate = builder.sign(authority_key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)

    (folder / "ca.crt").write_bytes(signed("authority.invalid", authority_key, ca=True))
    for file, name in names.items():
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / f"{file}.crt").write_bytes(signed(name, key, ca=False))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{file}.key").write_bytes(private)
