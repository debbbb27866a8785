from __future__ import annotations

import math

import pytest

from epp.keyed_uniform import keyed_uniform
from epp.signals.rtt import RttTable


def table(stale_after_s: float = 60.0) -> RttTable:
    made = RttTable(stale_after_s)
    made.resize(4)
    return made


def test_what_a_probe_catches_besides_the_network_does_not_show() -> None:
    # Published probes to a far region: 102 ms 47 times of 100, otherwise 285, 466 or 655 ms.
    rtts, modes = table(), (285.0, 466.0, 655.0)
    for i in range(200):
        clean = keyed_uniform(1, str(i), "mode") < 0.47
        rtts.observe(0, 102.0 if clean else modes[i % 3], i * 2.0)
        if i > 20:
            assert rtts.rtt_ms(i * 2.0)[0] == pytest.approx(102.0, rel=0.25)


def test_a_faster_route_shows_at_once_and_a_slower_one_after_the_window() -> None:
    rtts = table()
    for i in range(6):
        rtts.observe(0, 100.0, float(i))
    rtts.observe(0, 20.0, 6.0)
    assert rtts.rtt_ms(6.0)[0] == 76.0
    for i in range(7, 14):
        rtts.observe(0, 300.0, float(i))
        assert rtts.rtt_ms(float(i))[0] < 76.0, "the clean sample still stands in the window"
    for i in range(14, 40):
        rtts.observe(0, 300.0, float(i))
    assert rtts.rtt_ms(40.0)[0] == pytest.approx(300.0, rel=0.01)


def test_connects_of_real_requests_go_before_probes_while_they_are_fresh() -> None:
    rtts = table()
    rtts.assume(0, 50.0)
    assert (rtts.rtt_ms(0.0)[0], rtts.source(0, 0.0), rtts.source(1, 0.0)) == (50.0, "assumed", "")
    rtts.observe(0, 30.0, 0.0)
    assert (rtts.rtt_ms(0.0)[0], rtts.source(0, 0.0)) == (30.0, "probe")
    rtts.connected(0, 20.0, 1.0)
    assert (rtts.rtt_ms(1.0)[0], rtts.source(0, 1.0)) == (20.0, "connect")
    for now in range(2, 60):
        rtts.observe(0, 30.0, float(now))
    assert rtts.rtt_ms(60.0)[0] == 20.0
    rtts.observe(0, 30.0, 62.0)
    assert (rtts.rtt_ms(62.0)[0], rtts.source(0, 62.0)) == (30.0, "probe"), "no connects for a minute"
    assert not rtts.connected(0, -1.0, 63.0)
    rtts.connected(0, 21.0, 64.0)
    rtts.forget(0)
    assert (math.isnan(rtts.rtt_ms(64.0)[0]), rtts.source(0, 64.0)) == (True, "")


def test_connects_that_end_at_a_proxy_nearby_do_not_count() -> None:
    rtts = table()
    rtts.observe(0, 100.0, 0.0)
    rtts.connected(0, 0.2, 0.0)
    assert (rtts.rtt_ms(0.0)[0], rtts.source(0, 0.0)) == (100.0, "probe")
    rtts.connected(1, 0.2, 0.0)
    assert (rtts.rtt_ms(0.0)[1], rtts.source(1, 0.0)) == (0.2, "connect"), "nobody says otherwise"
