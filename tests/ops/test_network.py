"""What the doctor says of the way to far endpoints: of the kernel, of connections, of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.config.schema import Config
from epp.ops.doctor.checks import examine
from epp.ops.doctor.context import Context, Kernel, Page, Route, Severity
from epp.ops.doctor.envoy_dump import Envoy
from epp.ops.doctor.network import Far, far_regions, parse_route
from tests.kit.doctor import findings, noted

if TYPE_CHECKING:
    from epp.ops.doctor.context import Finding

SPECS = {
    "10.0.0.1:8000": EndpointSpec(address="10.0.0.1:8000", region="near"),
    "10.0.1.1:8000": EndpointSpec(address="10.0.1.1:8000", region="far"),
}
RTTS = {"10.0.0.1:8000": 0.002, "10.0.1.1:8000": 0.21, "gone:1": 0.3}
GOOD = {
    "tcp_slow_start_after_idle": "0",
    "tcp_congestion_control": "bbr",
    "tcp_available_congestion_control": "reno bbr cubic",
    "tcp_rmem": "4096\t131072\t33554432",
    "tcp_wmem": "4096\t16384\t33554432",
}
WIDE = {"10.0.1.1": Route("via 10.0.0.254 dev eth0", initcwnd=40)}


def relays() -> Config:
    where = {"far": "10.0.1.9:9443"}
    return Config(relays=Relays(regions=where, ca_file="ca", cert_file="cert", key_file="key"))


def page(rtts: dict[str, float], series: dict[str, float] | None = None) -> Page:
    lines = {f'epp_endpoint_rtt_seconds{{endpoint="{address}"}}': rtt_s for address, rtt_s in rtts.items()}
    lines |= {f'epp_endpoint_unavailable{{endpoint="{address}",reason="ejected"}}': 0 for address in rtts}
    lines |= {f'epp_endpoint_engine_age_seconds{{endpoint="{address}"}}': 0 for address in rtts}
    lines |= {name.replace("'", '"'): value for name, value in (series or {}).items()}
    return Page("".join(f"{name} {value}\n" for name, value in lines.items()))


def context(series: dict[str, float] | None = None, **fields: Any) -> Context:
    """Give a deployment with a far region, seen from Envoy's machine."""
    known: dict[str, Any] = {"config": Config(), "specs": SPECS, "metrics": page(RTTS, series)}
    return Context(admin="http://127.0.0.1:1", **{**known, "dump": Envoy({}), **fields})


def found(seen: Context) -> list[Finding]:
    """List what is advised about the network."""
    advised = findings(examine(seen).found, "network")
    assert all(finding.severity is Severity.ADVICE for finding in advised)
    return advised


def paths(cold_share: float, requests: float = 500.0) -> dict[str, float]:
    """Series of the far region."""
    return {
        "epp_path_requests_total{path='far',connection='cold'}": cold_share * requests,
        "epp_path_requests_total{path='far',connection='warm'}": (1 - cold_share) * requests,
        "epp_path_network_seconds{path='far',connection='cold'}": 0.96,
        "epp_path_network_seconds{path='far',connection='warm'}": 0.33,
    }


def test_regions_are_far_by_what_the_picker_measures() -> None:
    assert far_regions(context()) == {"far": Far(0.21, ("10.0.1.1",), relayed=False)}
    relayed = {"far": Far(0.21, ("10.0.1.9",), relayed=True)}
    assert far_regions(context(config=relays())) == relayed


def test_good_settings_are_left_alone_and_told() -> None:
    seen = context(kernel=Kernel(GOOD, WIDE))
    assert found(seen) == []
    assert "tcp_wmem 4096 16384 33554432" in noted(examine(seen).found)[-1]


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({"tcp_slow_start_after_idle": "1"}, "idle", "sysctl -w net.ipv4.tcp_slow_start_after_idle=0"),
        ({"tcp_congestion_control": "cubic"}, "lost packet", "sysctl -w net.ipv4.tcp_congestion_control=bbr"),
        (
            {"tcp_congestion_control": "cubic", "tcp_available_congestion_control": "reno cubic"},
            "lost packet",
            "modprobe tcp_bbr && sysctl -w",
        ),
        ({"tcp_wmem": "4096 16384 131072"}, "send", 'sysctl -w net.ipv4.tcp_wmem="4096 16384 2000000"'),
        ({"tcp_rmem": "4096 87380 212992"}, "receive", 'sysctl -w net.ipv4.tcp_rmem="4096 87380 2000000"'),
    ],
)
def test_each_setting_has_its_command(settings: dict[str, str], what: str, fix: str) -> None:
    (finding,) = found(context(kernel=Kernel({**GOOD, **settings}, WIDE)))
    assert what in finding.what
    assert fix in finding.fix


def test_an_initial_window_is_set_for_the_one_destination() -> None:
    for way in ("via 10.0.0.254 dev eth0", "dev wg0"):
        (finding,) = found(context(kernel=Kernel(GOOD, {"10.0.1.1": Route(way)})))
        assert "10.0.1.1" in finding.what
        assert finding.fix.startswith(f"ip route replace 10.0.1.1 {way} initcwnd 64")


@pytest.mark.parametrize(
    ("series", "config", "words"),
    [
        (paths(0.05), Config(), []),
        (paths(0.6, requests=20), Config(), []),
        (paths(0.6), Config(), ["60%", "630 ms", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]),
        (paths(0.6), relays(), ["60%", "firewalls"]),
    ],
)
def test_cold_requests_are_seen(series: dict[str, float], config: Config, words: list[str]) -> None:
    said = " ".join(f"{one.what} {one.why} {one.fix}" for one in found(context(series, config=config)))
    assert bool(words) == bool(said)
    assert all(word in said for word in words)


def dump(**options: Any) -> Envoy:
    """Give an Envoy whose clusters, the picker's too, have these HTTP/2 options."""
    prefix = "type.googleapis.com/x."
    names = ("replicas", "picker")
    service = {"envoy_grpc": {"cluster_name": "picker"}}
    ext_proc = {"@type": f"{prefix}ExternalProcessor", "grpc_service": service}
    manager = {"@type": f"{prefix}HttpConnectionManager", "http_filters": [ext_proc]}
    clusters = [{"@type": f"{prefix}Cluster", "name": name, "http": options} for name in names]
    return Envoy({"configs": [*clusters, {"@type": f"{prefix}ListenersConfigDump", "manager": manager}]})


def test_windows_smaller_than_a_long_body_are_named_but_for_the_pickers() -> None:
    (finding,) = found(context(dump=dump(initial_stream_window_size=65_536)))
    assert "cluster replicas" in finding.what
    assert "210 ms" in finding.why
    for fine in ({"initial_stream_window_size": 4 << 20}, {}):
        assert found(context(dump=dump(**fine))) == []


ROUTES = [
    (
        "10.2.3.4 via 10.1.0.2 dev v0 src 10.1.0.1 uid 0 \n    cache initcwnd 40 initrwnd 40 congctl reno \n",
        Route("via 10.1.0.2 dev v0", 40, "reno"),
    ),
    ("10.1.0.9 dev v0 src 10.1.0.1 uid 0 \n    cache \n", Route("dev v0")),
    (
        "10.2.3.4 via inet6 fe80::1 dev eth0 src 10.1.0.1 initcwnd lock 20 \n",
        Route("via fe80::1 dev eth0", 20),
    ),
    ("", None),
    ("RTNETLINK answers: Network is unreachable", None),
]


@pytest.mark.parametrize(("text", "route"), ROUTES)
def test_routes_are_read(text: str, route: Route | None) -> None:
    assert parse_route(text) == route
