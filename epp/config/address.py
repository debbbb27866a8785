"""``host:port`` in all its spellings, as Envoy and sockets want it."""

from __future__ import annotations

import ipaddress
import re
import socket

#: How a Unix socket is written where an address is asked for: ``unix:/path``.
UNIX = "unix:"
_HOST = re.compile(r"(?=.{1,253}\Z)(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?\Z")


def split_address(text: str) -> tuple[str, int]:
    """``10.0.0.1:80``, ``[fd00::1]:80`` or ``name.example:80`` to host (no brackets) and port.

    Raises:
        ValueError: saying what is wrong.
    """
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; write host:port alone")
    host, colon, port_text = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port")
    if not re.fullmatch("[0-9]{1,5}", port_text) or int(port_text) > 65535:
        raise ValueError(f"port {port_text!r} of {text!r} is not a number from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} in {text!r} is not an IPv6 address") from None
        return host, int(port_text)
    if ":" in host:
        raise ValueError(f"IPv6 addresses need brackets: [{host}]:{port_text}")
    if re.fullmatch(r"[0-9.]+", host):
        if not is_ip(host):
            raise ValueError(f"{host!r} in {text!r} is not an IPv4 address")
    elif not _HOST.match(host):
        raise ValueError(f"{host!r} in {text!r} is not a host name")
    return host, int(port_text)


def join_address(host: str, port: int) -> str:
    """Host and port to the one spelling used as an endpoint's name; IPv6 is compressed and bracketed."""
    if ":" in host:
        return f"[{spell_ipv6(host)}]:{port}"
    return f"{host.lower()}:{port}"


def spell_ipv6(host: str) -> str:
    """An IPv6 address (no brackets) as Envoy spells it, by which it finds an endpoint: with IPv4 in its end.

    Python's own spelling of ``::ffff:10.0.0.1`` is ``::ffff:a00:1``.
    """
    return socket.inet_ntop(socket.AF_INET6, ipaddress.IPv6Address(host).packed)


def normalise_address(text: str) -> str:
    """Any accepted spelling to the canonical one.

    Raises:
        ValueError: as `split_address`.
    """
    return join_address(*split_address(text))


def reachable(host: str) -> str:
    """Where a listener on a host (no brackets) is reached from its own machine: not at a wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def is_loopback(host: str) -> bool:
    """Whether a host (no brackets) is this machine: a loopback address, or ``localhost``."""
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_ip(host: str) -> bool:
    """Whether a host (no brackets) is an IPv4 or IPv6 address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
