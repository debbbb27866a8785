"""What a scrape tells of paths: nothing that nobody saw, and per region what was."""

from __future__ import annotations

import pytest

from epp.server.metrics_paths import path_families
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.paths import Travelled
from epp.signals.prefix_index import PrefixIndex


def fleet() -> Fleet:
    made = Fleet(PrefixIndex())
    made.apply([Endpoint("a:1", region="eu"), Endpoint("b:1", region="eu"), Endpoint("c:1")], 0.0)
    for address in ("a:1", "c:1"):
        made.assume_rtt(address, 100.0)
    return made


def read(made: Fleet) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("epp_path_"), *sample.labels.values()): sample.value
        for family in path_families(made, 1.0)
        for sample in family.samples
    }


def test_paths_that_nobody_told_of_have_no_series() -> None:
    assert read(fleet()) == {}


def test_a_region_is_one_path_and_an_endpoint_without_one_its_own() -> None:
    made = fleet()
    for slot in (0, 1):
        told = Travelled(anew=False, first_byte_ms=150.0)
        made.paths.observe(slot, 0, told, rtt_ms=100.0, body_bytes=43_800)
    made.paths.observe(0, 6, Travelled(anew=True, opened_ms=210.0), rtt_ms=100.0, body_bytes=43_800)
    made.paths.observe(2, 6, Travelled(anew=True, opened_ms=105.0), rtt_ms=100.0, body_bytes=43_800)
    seen = read(made)
    assert seen["requests_total", "eu", "warm"] == 2
    assert seen["requests_total", "eu", "cold"] == 1
    assert seen["cold_share", "eu"] == pytest.approx(1 / 3, abs=0.01)
    assert seen["connect_seconds", "eu"] == 0.21
    assert seen["network_seconds", "eu", "warm"] == pytest.approx(0.15)
    assert seen["network_seconds", "eu", "cold"] == pytest.approx(0.51), "210 to open, and three round trips"
    assert seen["upload_round_trips", "eu"] == pytest.approx(0.25)
    assert seen["cold_share", "c:1"] == 1.0
    assert ("upload_round_trips", "c:1") not in seen, "no body was seen there on a connection that was warm"
