"""What the kernel here does with long connections: settings and routes of this network namespace, read only.

Owns the reading; what is made of it is in `epp.server.doctor.network`. Nothing is ever set.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSCTLS = (
    "tcp_slow_start_after_idle",
    "tcp_congestion_control",
    "tcp_available_congestion_control",
    "tcp_rmem",
    "tcp_wmem",
)
"""Names under ``net.ipv4``; they hold for IPv6, too (kernel.org, networking/ip-sysctl)."""

_SYSCTL = Path("/proc/sys/net/ipv4")
_ROUTE_S = 5.0


@dataclass(frozen=True, slots=True)
class Route:
    """How a destination is reached.

    Attributes:
        gateway: next hop, ``""`` for a neighbour.
        device: interface.
        initcwnd: initial congestion window in segments, 0 for the kernel's own 10 (RFC 6928).
        congestion: congestion control of this route, ``""`` for the default.
    """

    gateway: str
    device: str
    initcwnd: int = 0
    congestion: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Settings by name, those that could be read, and routes by destination."""

    settings: Mapping[str, str]
    routes: Mapping[str, Route] = field(default_factory=dict)


async def read_kernel(hosts: Iterable[str], folder: Path = _SYSCTL) -> Kernel:
    """Read what there is; without any settings this is no Linux, or it hides them.

    Args:
        hosts: IP addresses whose routes are wanted; those without ``ip``, or without a route, are left out.
        folder: where settings are.
    """
    settings = {}
    for name in SYSCTLS:
        try:
            settings[name] = (folder / name).read_text().strip()
        except OSError:
            continue
    routes = {}
    for host in dict.fromkeys(hosts):
        route = parse_route(await _route_to(host))
        if route is not None:
            routes[host] = route
    return Kernel(settings, routes)


async def _route_to(host: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            "ip", "route", "get", host,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return ""
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _ROUTE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return said.decode(errors="replace")


def parse_route(text: str) -> Route | None:
    """What ``ip route get`` printed; None when it is no route."""
    device = re.search(r"\bdev (\S+)", text)
    if device is None:
        return None
    gateway = re.search(r"\bvia (?:inet6? )?(\S+)", text)
    window = re.search(r"\binitcwnd (?:lock )?(\d+)", text)
    congestion = re.search(r"\bcongctl (?:lock )?(\S+)", text)
    return Route(
        gateway=gateway[1] if gateway else "",
        device=device[1],
        initcwnd=int(window[1]) if window else 0,
        congestion=congestion[1] if congestion else "",
    )
