"""Certificates that are their own authority, made with openssl."""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def trusting() -> ssl.SSLContext:
    """A gRPC client that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def self_signed(cert: Path, key: Path, name: str, *, alternatives: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that is valid for two days and its private key, both as PEM; the paths given.

    Args:
        cert, key: where they are written, over what is there.
        name: common name.
        alternatives: what it is valid for, as openssl's ``subjectAltName``.

    Raises:
        FileNotFoundError: there is no openssl.
    """
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(cert),
         "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternatives}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
