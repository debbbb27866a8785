"""What the doctor says of the way to far endpoints: of the kernel, of connections, of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.config.schema import Config
from epp.server.doctor.findings import Report, Severity
from epp.server.doctor.kernel import Kernel, Route, parse_route, read_kernel
from epp.server.doctor.network import Far, check_kernel, check_paths, check_windows, far_regions
from epp.server.doctor.picker import Page

if TYPE_CHECKING:
    from pathlib import Path

SPECS = {
    "10.0.0.1:8000": EndpointSpec(address="10.0.0.1:8000", region="near"),
    "10.0.1.1:8000": EndpointSpec(address="10.0.1.1:8000", region="far"),
    "10.0.1.2:8000": EndpointSpec(address="10.0.1.2:8000", region="far"),
    "lonely:8000": EndpointSpec(address="lonely:8000"),
}
RTTS = {"10.0.0.1:8000": 0.002, "10.0.1.1:8000": 0.21, "10.0.1.2:8000": 0.211, "gone:1": 0.3}
FAR = {"far": Far(0.21, ("10.0.1.1",), relayed=False)}
RELAYED = {"far": Far(0.21, ("10.0.1.9",), relayed=True)}
GOOD = {
    "tcp_slow_start_after_idle": "0",
    "tcp_congestion_control": "bbr",
    "tcp_available_congestion_control": "reno bbr cubic",
    "tcp_rmem": "4096\t131072\t33554432",
    "tcp_wmem": "4096\t16384\t33554432",
}
WIDE = {"10.0.1.1": Route("10.0.0.254", "eth0", initcwnd=40)}


def relays() -> Config:
    where = {"far": "10.0.1.9:9443"}
    return Config(relays=Relays(regions=where, ca_file="ca", cert_file="cert", key_file="key"))


def page(**series: float) -> Page:
    lines = {f'epp_endpoint_rtt_seconds{{endpoint="{address}"}}': rtt_s for address, rtt_s in RTTS.items()}
    lines |= {name.replace("'", '"'): value for name, value in series.items()}
    return Page("".join(f"{name} {value}\n" for name, value in lines.items()))


def paths(cold_share: float, requests: float = 500.0) -> dict[str, float]:
    """Series of the far region."""
    return {
        "epp_path_requests_total{path='far',connection='cold'}": cold_share * requests,
        "epp_path_requests_total{path='far',connection='warm'}": (1 - cold_share) * requests,
        "epp_path_network_seconds{path='far',connection='cold'}": 0.96,
        "epp_path_network_seconds{path='far',connection='warm'}": 0.33,
    }


def kernel_says(far: dict[str, Far], kernel: Kernel, config: Config | None = None) -> list[tuple[str, str]]:
    report = Report()
    check_kernel(report, far, kernel, config or Config())
    assert all(finding.severity is Severity.ADVICE for finding in report.findings)
    return [(finding.what, finding.fix) for finding in report.findings]


def test_regions_are_far_by_what_the_picker_measures() -> None:
    found = far_regions(page(), Config(), SPECS)
    assert found == {"far": Far(0.21, ("10.0.1.1", "10.0.1.2"), relayed=False)}
    relayed = far_regions(page(), relays(), SPECS)
    assert relayed == {"far": Far(0.21, ("10.0.1.9",), relayed=True)}


def test_what_is_late_on_this_machine_is_not_far() -> None:
    specs = {
        "127.0.0.1:1": EndpointSpec(address="127.0.0.1:1", region="demo"),
        "[::1]:1": EndpointSpec(address="[::1]:1"),
        "localhost:1": EndpointSpec(address="localhost:1"),
    }
    said = Page("".join(f'epp_endpoint_rtt_seconds{{endpoint="{address}"}} 0.2\n' for address in specs))
    assert far_regions(said, Config(), specs) == {}
    mixed = specs | {"10.0.0.9:1": EndpointSpec(address="10.0.0.9:1", region="demo")}
    said = Page("".join(f'epp_endpoint_rtt_seconds{{endpoint="{address}"}} 0.2\n' for address in mixed))
    assert far_regions(said, Config(), mixed) == {"demo": Far(0.2, ("10.0.0.9",), relayed=False)}


def test_near_endpoints_need_nothing_whatever_the_kernel_does() -> None:
    worst = Kernel({**GOOD, "tcp_slow_start_after_idle": "1", "tcp_congestion_control": "reno"})
    report = Report()
    check_kernel(report, {}, worst, Config())
    check_windows(report, {"configs": []}, {})
    assert (report.findings, report.notes) == ([], [])


def test_good_settings_are_left_alone_and_told() -> None:
    report = Report()
    check_kernel(report, FAR, Kernel(GOOD, WIDE), Config())
    assert report.findings == []
    assert "tcp_wmem 4096 16384 33554432" in report.notes[0][1]


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
    ((said, advised),) = kernel_says(FAR, Kernel({**GOOD, **settings}, WIDE))
    assert what in said
    assert fix in advised


def test_an_initial_window_is_set_for_the_one_destination() -> None:
    ((said, fix),) = kernel_says(FAR, Kernel(GOOD, {"10.0.1.1": Route("10.0.0.254", "eth0")}))
    assert "10.0.1.1" in said
    assert fix.startswith("ip route replace 10.0.1.1 via 10.0.0.254 dev eth0 initcwnd 64")
    ((_, fix),) = kernel_says(FAR, Kernel(GOOD, {"10.0.1.1": Route("", "wg0")}))
    assert fix.startswith("ip route replace 10.0.1.1 dev wg0 initcwnd 64")


def test_relays_need_no_wide_beginning_but_room_for_their_windows() -> None:
    narrow = Kernel({**GOOD, "tcp_wmem": "4096 16384 4194304"}, {"10.0.1.9": Route("10.0.0.254", "eth0")})
    ((said, fix),) = kernel_says(RELAYED, narrow, relays())
    assert "4,194,304" in said
    assert "8388608" in fix, "twice the stream window"
    cubic = Kernel({**GOOD, "tcp_congestion_control": "cubic"})
    assert "relays.congestion_control" in kernel_says(RELAYED, cubic, relays())[0][1]


def test_a_control_chosen_by_route_counts() -> None:
    routes = {"10.0.1.1": Route("10.0.0.254", "eth0", initcwnd=40, congestion="bbr")}
    assert kernel_says(FAR, Kernel({**GOOD, "tcp_congestion_control": "cubic"}, routes)) == []


def test_where_nothing_can_be_read_nothing_is_found() -> None:
    report = Report()
    check_kernel(report, FAR, Kernel({}), Config())
    assert report.findings == []
    assert "could not be read" in report.notes[0][1]


@pytest.mark.parametrize(
    ("series", "relayed", "words"),
    [
        (paths(0.05), False, []),
        (paths(0.6, requests=20), False, []),
        (paths(0.6), False, ["60%", "630 ms", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]),
        (paths(0.6), True, ["60%", "firewalls"]),
    ],
)
def test_cold_requests_are_seen(series: dict[str, float], relayed: bool, words: list[str]) -> None:
    report = Report()
    check_paths(report, page(**series), RELAYED if relayed else FAR)
    said = " ".join(f"{one.what} {one.why} {one.fix}" for one in report.findings)
    assert bool(words) == bool(report.findings)
    for word in words:
        assert word in said


def dump(**options: Any) -> dict[str, Any]:
    """A relay's cluster and the picker's, with these HTTP/2 options."""

    def cluster(name: str) -> dict[str, Any]:
        explicit = {"explicit_http_config": {"http2_protocol_options": options}}
        return {"cluster": {"name": name, "typed_extension_protocol_options": {"http": explicit}}}

    ext_proc = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
    }
    return {
        "configs": [
            {
                "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
                "static_clusters": [cluster("replicas"), cluster("picker")],
            },
            {"filter": ext_proc},
        ]
    }


def test_windows_smaller_than_a_long_body_are_named_but_for_the_pickers() -> None:
    report = Report()
    check_windows(report, dump(initial_stream_window_size=65_536), RELAYED)
    (finding,) = report.findings
    assert "cluster replicas" in finding.what
    assert "210 ms" in finding.why
    for fine in ({"initial_stream_window_size": 4 << 20}, {}):
        report = Report()
        check_windows(report, dump(**fine), RELAYED)
        assert report.findings == []


ROUTES = [
    (
        "10.2.3.4 via 10.1.0.2 dev v0 src 10.1.0.1 uid 0 \n    cache initcwnd 40 initrwnd 40 congctl reno \n",
        Route("10.1.0.2", "v0", 40, "reno"),
    ),
    ("10.1.0.9 dev v0 src 10.1.0.1 uid 0 \n    cache \n", Route("", "v0")),
    (
        "10.2.3.4 via inet6 fe80::1 dev eth0 src 10.1.0.1 initcwnd lock 20 \n",
        Route("fe80::1", "eth0", 20),
    ),
    ("", None),
    ("RTNETLINK answers: Network is unreachable", None),
]


@pytest.mark.parametrize(("text", "route"), ROUTES)
def test_routes_are_read(text: str, route: Route | None) -> None:
    assert parse_route(text) == route


async def test_what_can_be_read_is(tmp_path: Path) -> None:
    (tmp_path / "tcp_slow_start_after_idle").write_text("1\n")
    kernel = await read_kernel([], tmp_path)
    assert kernel == Kernel({"tcp_slow_start_after_idle": "1"})
    assert (await read_kernel([], tmp_path / "elsewhere")).settings == {}
    for route in (await read_kernel(["127.0.0.1"], tmp_path)).routes.values():
        assert route.device  # where there is no `ip` there are no routes
