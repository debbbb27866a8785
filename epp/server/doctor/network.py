"""Checks of the way to far endpoints: connections, the kernel's settings, HTTP/2 windows. Pure.

Speaks only where an endpoint, or its relay, is far and on another machine: within a region round trips cost
nothing that settings could win back. Everything is advice with the command that would do it; nothing is done.
docs/multi-region.md tells what each is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import is_ip, is_loopback, split_address
from epp.config.relays import STREAM_WINDOW_BYTES
from epp.server.doctor.envoy_tree import Tree, clusters_of, find_types, listeners_of
from epp.view import FIRST_FLIGHT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.server.doctor.findings import Report
    from epp.server.doctor.kernel import Kernel, Route
    from epp.server.doctor.picker import Page

#: Round trip from which a path is long: a cold 72 KB prompt then pays some 180 ms more than a warm one.
LONG_S = 0.05
#: Requests below which shares say nothing, and the share of cold ones that is worth a word.
ENOUGH, COLD_SHARE = 100, 0.1
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


def far_regions(page: Page, config: Config, specs: Mapping[str, EndpointSpec]) -> dict[str, Far]:
    """Far regions by name, an endpoint without one by its address, by the round trips that count."""
    rtts: dict[str, dict[str, float]] = {}
    for address, rtt_s in page.by("epp_endpoint_rtt_seconds", "endpoint").items():
        if address in specs:
            rtts.setdefault(specs[address].region or address, {})[address] = rtt_s
    found = {}
    for region, by_address in rtts.items():
        nearest_s = min(by_address.values())
        if nearest_s >= LONG_S:
            relay = config.relays.regions.get(region)
            names = [relay] if relay else sorted(by_address)
            hosts = dict.fromkeys(split_address(name)[0] for name in names)
            away = tuple(host for host in hosts if not is_loopback(host))
            if away:  # what this machine itself answers late is busy, or plays at being far
                found[region] = Far(nearest_s, away, relay is not None)
    return found


def check_paths(report: Report, page: Page, far: Mapping[str, Far]) -> None:
    """What the picker's own metrics tell of connections to far regions."""
    counts = page.by("epp_path_requests_total", "path")
    for region, one in far.items():
        if counts.get(region, 0.0) < ENOUGH:
            continue
        share = page.total("epp_path_requests_total", path=region, connection="cold") / counts[region]
        cold_s = page.total("epp_path_network_seconds", path=region, connection="cold")
        warm_s = page.total("epp_path_network_seconds", path=region, connection="warm")
        report.note("network", f"{region}: {one.rtt_s * 1e3:.0f} ms away, {share:.0%} on cold connections")
        if share > COLD_SHARE:
            report.advice(
                "network",
                f"{share:.0%} of the requests to {region}, {one.rtt_s * 1e3:.0f} ms away, open a connection",
                f"each waits some {(cold_s - warm_s) * 1e3:.0f} ms longer for its first token",
                _RELAYED_FIX if one.relayed else _DIRECT_FIX,
            )


def check_kernel(report: Report, far: Mapping[str, Far], kernel: Kernel, config: Config) -> None:
    """The settings of the machine that Envoy runs on, for far regions."""
    if not far:
        return
    if not kernel.settings:
        report.note("network", "the kernel's settings could not be read here")
        return
    longest_s = max(one.rtt_s for one in far.values())
    told = ", ".join(f"{name} {value}" for name, value in kernel.settings.items())
    report.note("network", f"kernel here: {told}".replace("\t", " "))
    _idle(report, kernel, longest_s)
    _congestion(report, far, kernel, config, longest_s)
    _buffers(report, kernel, _window_bytes(config))
    for one in far.values():
        if not one.relayed:
            for host in one.hosts:
                _initial_window(report, host, kernel.routes.get(host), one.rtt_s)


def _idle(report: Report, kernel: Kernel, longest_s: float) -> None:
    if kernel.settings.get("tcp_slow_start_after_idle") == "1":
        report.advice(
            "network",
            "connections forget their window when idle (tcp_slow_start_after_idle is 1)",
            f"after a pause of a second a 72 KB prompt pays {2 * longest_s * 1e3:.0f} ms of slow start again",
            "sysctl -w net.ipv4.tcp_slow_start_after_idle=0, and the same on hosts of relays and engines",
        )


def _congestion(
    report: Report, far: Mapping[str, Far], kernel: Kernel, config: Config, longest_s: float
) -> None:
    control = kernel.settings.get("tcp_congestion_control", "")
    available = kernel.settings.get("tcp_available_congestion_control", "").split()
    routed = {
        kernel.routes[host].congestion for one in far.values() for host in one.hosts if host in kernel.routes
    }
    chosen = config.relays.congestion_control
    if control == "bbr" or "bbr" in routed or (chosen == "bbr" and all(one.relayed for one in far.values())):
        return
    if control not in ("cubic", "reno"):
        return
    # 1.22 segments per round trip and square root of the loss.
    rate = 1.22 * _SEGMENT_BYTES / (longest_s * _LOSS**0.5)
    load = "" if "bbr" in available else "modprobe tcp_bbr && "
    report.advice(
        "network",
        f"congestion control is {control}, which takes every lost packet for a full link",
        f"at {_LOSS:.1%} loss a connection over {longest_s * 1e3:.0f} ms sends {rate / 1e3:,.0f} KB/s",
        f"{load}sysctl -w net.ipv4.tcp_congestion_control=bbr where the links lose packets without being full"
        + (" (for relays alone: relays.congestion_control: bbr)" if config.relays.regions else ""),
    )


def _window_bytes(config: Config) -> int:
    """What should be on its way at once: a long body; with relays what their windows let through."""
    return max(BODY_BYTES, STREAM_WINDOW_BYTES if config.relays.regions else 0)


def _buffers(report: Report, kernel: Kernel, window_bytes: int) -> None:
    for name, side in (("tcp_wmem", "send"), ("tcp_rmem", "receive")):
        words = kernel.settings.get(name, "").split()
        if len(words) != 3 or not words[2].isdigit():
            continue
        needed = _OVERHEAD * window_bytes
        if int(words[2]) < needed:
            report.advice(
                "network",
                f"{side} buffers grow to {int(words[2]):,} bytes at most ({name})",
                f"half of that is on its way in one round trip at most, of {window_bytes:,} that could be",
                f'sysctl -w net.ipv4.{name}="{words[0]} {words[1]} {needed}"',
            )


def _initial_window(report: Report, host: str, route: Route | None, rtt_s: float) -> None:
    if route is None or route.initcwnd > _INITIAL_SEGMENTS or not is_ip(host):
        return
    way = f"via {route.gateway} dev {route.device}" if route.gateway else f"dev {route.device}"
    report.advice(
        "network",
        f"new connections to {host}, {rtt_s * 1e3:.0f} ms away, begin with {_INITIAL_SEGMENTS} segments",
        f"a cold prompt of {_WIDE_SEGMENTS * _SEGMENT_BYTES // 1000} KB pays three round trips too many",
        f"ip route replace {host} {way} initcwnd {_WIDE_SEGMENTS}, and initrwnd {_WIDE_SEGMENTS} on the way"
        " back at the engine's host; a relay makes it needless",
    )


def check_windows(report: Report, dump: Tree, far: Mapping[str, Far]) -> None:
    """HTTP/2 windows that Envoy was told, where they are smaller than a long body; ``dump`` of its admin."""
    if not far:
        return
    picker = {
        found.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name")
        for found in find_types(dump, "ExternalProcessor")
    }
    longest_s = max(one.rtt_s for one in far.values())
    places = [(f"cluster {name}", tree) for name, tree in clusters_of(dump).items() if name not in picker]
    places += [
        (f"listener {listener.get('name', '')}", manager)
        for listener in listeners_of(dump)
        for manager in find_types(listener, "HttpConnectionManager")
    ]
    for place, tree in places:
        for options in _http2_options(tree):
            for name in ("initial_stream_window_size", "initial_connection_window_size"):
                size = options.get(name)
                if size is not None and size < BODY_BYTES:
                    report.advice(
                        "network",
                        f"{place} has an HTTP/2 {name} of {size:,} bytes",
                        f"longer bodies wait {longest_s * 1e3:.0f} ms for each such piece on any link",
                        f"raise {name} to {BODY_BYTES:,} or more, or leave it out: Envoy's own is larger",
                    )


def _http2_options(tree: object) -> list[Tree]:
    """Every ``http2_protocol_options`` below, whatever holds it."""
    if isinstance(tree, list):
        return [found for item in tree for found in _http2_options(item)]
    if not isinstance(tree, dict):
        return []
    here = [tree["http2_protocol_options"]] if isinstance(tree.get("http2_protocol_options"), dict) else []
    return here + [found for item in tree.values() for found in _http2_options(item)]
