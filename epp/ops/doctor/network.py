"""Checks of the way to far endpoints: connections, the kernel's settings, HTTP/2 windows. Pure.

Speaks only where an endpoint, or its relay, is far and on another machine: within a region round trips cost
nothing that settings could win back. Everything is advice with the command that would do it.
docs/multi-region.md says what each is worth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from epp.config.address import is_ip, is_loopback, split_address
from epp.config.relays import STREAM_WINDOW_BYTES
from epp.ops.doctor.context import ENOUGH, Kernel, Route, advice, note
from epp.ops.doctor.envoy_dump import messages
from epp.types import FIRST_FLIGHT_BYTES, split_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

from epp.ops.doctor.context import Context, Findings

#: Round trip from which a path is long: a cold 72 KB prompt then pays some 180 ms more than a warm one.
LONG_S = 0.05
#: Share of cold requests that is worth a word.
COLD_SHARE = 0.1
#: The longest prompt that should go up without waiting for windows: some 250k tokens.
BODY_BYTES = 1_000_000
#: Kernels count a buffer's overhead in: about as much again as the data (kernel.org, networking/ip-sysctl).
_OVERHEAD = 2
#: Segments of the kernel's own first flight, and those that take a prompt of 20k tokens at once.
_INITIAL_SEGMENTS, _WIDE_SEGMENTS = 10, 64
_SEGMENT_BYTES = FIRST_FLIGHT_BYTES // _INITIAL_SEGMENTS
#: Loss at which controls that halve their window are judged (Mathis et al. 1997, the macroscopic behaviour).
_LOSS = 0.005
_RELAYED_FIX = "let firewalls on the way keep connections on which a ping passes every two seconds"
_DIRECT_FIX = (
    "put a relay into the region (docs/multi-region.md); or let idle connections live longer, first at"
    " engines (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75, 5 s without), then in Envoy's cluster of them"
    " (epp envoy render --upstream-idle-timeout 60)"
)

SYSCTLS = (
    "tcp_slow_start_after_idle",
    "tcp_congestion_control",
    "tcp_available_congestion_control",
    "tcp_rmem",
    "tcp_wmem",
)
"""Names under ``net.ipv4``; they hold for IPv6, too (kernel.org, networking/ip-sysctl)."""


def parse_route(text: str) -> Route | None:
    """Read what ``ip route get`` printed; None when it is no route."""
    device = re.search(r"\bdev (\S+)", text)
    if device is None:
        return None
    gateway = re.search(r"\bvia (?:inet6? )?(\S+)", text)
    window = re.search(r"\binitcwnd (?:lock )?(\d+)", text)
    congestion = re.search(r"\bcongctl (?:lock )?(\S+)", text)
    return Route(
        way=f"via {gateway[1]} dev {device[1]}" if gateway else f"dev {device[1]}",
        initcwnd=int(window[1]) if window else 0,
        congestion=congestion[1] if congestion else "",
    )


@dataclass(frozen=True, slots=True)
class Far:
    """A far region.

    Attributes:
        rtt_s: round trip to the nearest of its endpoints.
        hosts: addresses that Envoy connects to: its relay's, else its endpoints'.
        relayed: whether there is a relay.
    """

    rtt_s: float
    hosts: tuple[str, ...]
    relayed: bool


def far_regions(context: Context) -> dict[str, Far]:
    """Find far regions by name, an endpoint without one by its address, by the RTTs that the picker has."""
    rtts: dict[str, dict[str, float]] = {}
    measured = context.metrics.by("epp_endpoint_rtt_seconds", "endpoint") if context.metrics else {}
    for address in measured.keys() & context.endpoints.keys():
        rtts.setdefault(context.endpoints[address].region or address, {})[address] = measured[address]
    found = {}
    for region, by_address in sorted(rtts.items()):
        nearest_s = min(by_address.values())
        relay = context.config.relays.regions.get(region)
        names = [relay] if relay else sorted(by_address)
        hosts = dict.fromkeys(split_address(split_rank(name)[0])[0] for name in names)
        away = tuple(host for host in hosts if not is_loopback(host))
        # What this machine itself answers late is busy, or plays at being far.
        if nearest_s >= LONG_S and away:
            found[region] = Far(nearest_s, away, relay is not None)
    return found


def paths(context: Context) -> Findings:
    """Check by the picker's metrics that connections to far regions stay open and fast."""
    page = context.page
    counts = page.by("epp_path_requests_total", "path")
    for region, one in far_regions(context).items():
        if counts.get(region, 0.0) < ENOUGH:
            continue
        rtt_ms = one.rtt_s * 1e3
        share = page.total("epp_path_requests_total", path=region, connection="cold") / counts[region]
        cold_s, warm_s = (
            page.total("epp_path_network_seconds", path=region, connection=kind) for kind in ("cold", "warm")
        )
        yield note(f"{region}: {rtt_ms:.0f} ms away, {share:.0%} on cold connections")
        if share > COLD_SHARE:
            yield advice(
                f"{share:.0%} of the requests to {region}, {rtt_ms:.0f} ms away, open a connection",
                f"each waits some {(cold_s - warm_s) * 1e3:.0f} ms longer for its first token",
                _RELAYED_FIX if one.relayed else _DIRECT_FIX,
            )


def windows(context: Context) -> Findings:
    """Check that HTTP/2 windows of Envoy hold a long body, where something is far."""
    far = far_regions(context)
    if not far:
        return
    envoy = context.envoy
    longest_ms = max(one.rtt_s for one in far.values()) * 1e3
    pickers = [asked.picker for asked in envoy.asked]
    places = [(f"cluster {name}", tree) for name, tree in envoy.clusters.items() if name not in pickers]
    places += [(f"listener {manager.get('stat_prefix')}", manager) for manager in envoy.managers]
    for place, tree in places:
        for message in messages(tree):
            for name in ("initial_stream_window_size", "initial_connection_window_size"):
                size = message.get(name)
                if size is not None and size < BODY_BYTES:
                    yield advice(
                        f"{place} has an HTTP/2 {name} of {size:,} bytes",
                        f"longer bodies wait {longest_ms:.0f} ms for each such piece on any link",
                        f"raise {name} to {BODY_BYTES:,} or more, or leave it out: Envoy's own is larger",
                    )


def is_envoys(admin: str) -> bool:
    """Tell by the URL of its admin interface whether Envoy runs on this machine."""
    return is_loopback(urlsplit(admin).hostname or "")


def kernel(context: Context) -> Findings:
    """Check the settings of the machine that Envoy runs on, where something is far."""
    far, found = far_regions(context), context.kernel
    if not far or not context.admin:
        return
    if found is None:
        yield note("run the doctor where Envoy runs, to look at the kernel's settings")
        return
    if not found.settings:
        yield note("the kernel's settings could not be read here")
        return
    told = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    yield note(f"kernel here: {told}".replace("\t", " "))
    longest_s = max(one.rtt_s for one in far.values())
    if found.settings.get("tcp_slow_start_after_idle") == "1":
        yield advice(
            "connections forget their window when idle (tcp_slow_start_after_idle is 1)",
            f"after a pause of a second a 72 KB prompt pays {2 * longest_s * 1e3:.0f} ms of slow start again",
            "sysctl -w net.ipv4.tcp_slow_start_after_idle=0, and the same on hosts of relays and engines",
        )
    yield from _congestion(far, found, longest_s)
    yield from _buffers(context, found)
    for one in far.values():
        if not one.relayed:
            for host in one.hosts:
                yield from _initial_window(host, found.routes.get(host), one.rtt_s)


def _congestion(far: Mapping[str, Far], found: Kernel, longest_s: float) -> Findings:
    control = found.settings.get("tcp_congestion_control", "")
    available = found.settings.get("tcp_available_congestion_control", "").split()
    hosts = {host for one in far.values() for host in one.hosts}
    chosen = {found.routes[host].congestion for host in hosts & found.routes.keys()}
    if "bbr" in chosen or control not in ("cubic", "reno"):
        return
    # 1.22 segments per round trip and square root of the loss.
    rate = 1.22 * _SEGMENT_BYTES / (longest_s * _LOSS**0.5)
    load = "" if "bbr" in available else "modprobe tcp_bbr && "
    yield advice(
        f"congestion control is {control}, which takes every lost packet for a full link",
        f"at {_LOSS:.1%} loss a connection over {longest_s * 1e3:.0f} ms sends {rate / 1e3:,.0f} KB/s",
        f"{load}sysctl -w net.ipv4.tcp_congestion_control=bbr where links lose packets without being full",
    )


def _buffers(context: Context, found: Kernel) -> Findings:
    """Check that buffers hold a long body; with relays what their windows let through."""
    relays = context.config.relays
    window_bytes = max(BODY_BYTES, STREAM_WINDOW_BYTES if relays.regions else 0)
    needed = _OVERHEAD * window_bytes
    for name, side in (("tcp_wmem", "send"), ("tcp_rmem", "receive")):
        words = found.settings.get(name, "").split()
        if len(words) == 3 and words[2].isdigit() and int(words[2]) < needed:
            yield advice(
                f"{side} buffers grow to {int(words[2]):,} bytes at most ({name})",
                f"half of that is on its way in one round trip at most, of {window_bytes:,} that could be",
                f'sysctl -w net.ipv4.{name}="{words[0]} {words[1]} {needed}"',
            )


def _initial_window(host: str, route: Route | None, rtt_s: float) -> Findings:
    if route is not None and route.initcwnd <= _INITIAL_SEGMENTS and is_ip(host):
        yield advice(
            f"new connections to {host}, {rtt_s * 1e3:.0f} ms away, begin with {_INITIAL_SEGMENTS} segments",
            f"a cold prompt of {_WIDE_SEGMENTS * _SEGMENT_BYTES // 1000} KB pays three round trips too many",
            f"ip route replace {host} {route.way} initcwnd {_WIDE_SEGMENTS}, and initrwnd {_WIDE_SEGMENTS} on"
            " the way back at the engine's host; a relay makes it needless",
        )
