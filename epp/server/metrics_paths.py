"""Metrics of the way to each region: connections that requests found or had to have opened, and their cost.

Owns the names. The label ``path`` is a region, or an endpoint's address where it names none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from epp.signals.fleet import Fleet


def path_families(fleet: Fleet, now_s: float) -> Iterator[Metric]:
    """One series a path, or two: nothing of a path that no report told of, no value that is not known."""
    requests = CounterMetricFamily(
        "epp_path_requests_total",
        "Requests whose connection Envoy told of: opened for them (cold), or there before (warm).",
        labels=["path", "connection"],
    )
    cold_share = GaugeMetricFamily(
        "epp_path_cold_share",
        "Share of the last few hundred requests that had a connection opened for them.",
        labels=["path"],
    )
    connect = GaugeMetricFamily(
        "epp_path_connect_seconds",
        "Time to open a connection, handshakes included: the least of the last few.",
        labels=["path"],
    )
    network = GaugeMetricFamily(
        "epp_path_network_seconds",
        "Network time to the first byte as estimated for a body of mean size, by connection; cold includes"
        " its opening.",
        labels=["path", "connection"],
    )
    rounds = GaugeMetricFamily(
        "epp_path_upload_round_trips",
        "Round trips per doubling of a body on warm connections, as seen; 0 for windows that stay open.",
        labels=["path"],
    )
    for path, seen in fleet.paths.describe(fleet.rtt.rtt_ms(now_s)).items():
        requests.add_metric([path, "cold"], seen.cold)
        requests.add_metric([path, "warm"], seen.requests - seen.cold)
        cold_share.add_metric([path], seen.cold_share)
        for family, labels, value in (
            (connect, [path], seen.connect_ms / 1e3),
            (network, [path, "warm"], seen.warm_ms / 1e3),
            (network, [path, "cold"], seen.cold_ms / 1e3),
            (rounds, [path], seen.upload_rounds),
        ):
            if not math.isnan(value):
                family.add_metric(labels, value)
    yield from (requests, cold_share, connect, network, rounds)
