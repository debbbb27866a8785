"""Two tiers on loopback: relays on free ports, with certificates for both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.config.relays import Relays
from tests.kit.certificates import self_signed
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GLOBAL_NAME, RELAY_NAME = "global.epp.internal", "relay.epp.internal"


def certificates(folder: Path, names: dict[str, str] | None = None) -> Path:
    """Certificates of the global Envoy, of the relays and of a stranger, and a file of those who may speak.

    With ``names``, file to DNS name, of these and of a stranger.

    The stranger's is signed by somebody whom everybody trusts, as any other service's in a company is.
    """
    names = names or {"global": GLOBAL_NAME, "relay": RELAY_NAME}
    names = {**names, "stranger": "stranger.epp.internal"}
    for file, name in names.items():
        self_signed(folder / f"{file}.crt", folder / f"{file}.key", name, alternatives=f"DNS:{name}")
    (folder / "ca.crt").write_text("".join((folder / f"{file}.crt").read_text() for file in names))
    return folder


def relays(
    folder: Path, regions: Sequence[str], *, connections: int = 2, who: str = "global", **changes: Any
) -> Relays:
    """Relays of regions on free ports, as one side (``global``, ``relay`` or ``stranger``) configures them."""
    addresses = {region: f"127.0.0.1:{free_ports(connections)}" for region in regions}
    values: dict[str, Any] = {"regions": addresses, "connections": connections} | changes
    return Relays(
        ca_file=str(folder / "ca.crt"),
        cert_file=str(folder / f"{who}.crt"),
        key_file=str(folder / f"{who}.key"),
        **values,
    )
