from __future__ import annotations

import math
import statistics

import pytest

from epp.lab.sim.network import INITIAL_WINDOW_BYTES, Connections, NetworkPath, SlowStart


def still(slow_start: SlowStart = SlowStart.IDLE, rtt_ms: float = 100.0) -> NetworkPath:
    return NetworkPath(rtt_ms, jitter=0.0, spike_share=0.0, slow_start=slow_start)


def trips(connections: Connections, at_ms: float, body_bytes: int = 80_000) -> int:
    """One request that takes no time."""
    foreseen = connections.preview(body_bytes, at_ms)
    connection, round_trips = connections.take(body_bytes, at_ms)
    connections.give_back(connection, at_ms)
    assert foreseen == round_trips
    return round_trips


# 80 kB: 14.6 at once, then 29.2 and 58.4.
@pytest.mark.parametrize(
    ("slow_start", "gaps_ms", "expected"),
    [
        (SlowStart.ALWAYS, [10.0, 10.0], [3, 2, 2]),
        (SlowStart.NEVER, [10.0, 50_000.0], [3, 1, 0]),  # 58.4 kB and 116.8 kB; then all at once
        (SlowStart.IDLE, [10.0, 10.0], [3, 1, 0]),
        (SlowStart.IDLE, [10_000.0, 700.0], [3, 2, 2]),  # long idle: as if new
        (SlowStart.IDLE, [10.0, 700.0], [3, 1, 1]),  # two timeouts of 300 ms: 116.8 kB become 29.2
    ],
)
def test_windows_grow_and_fall_back(slow_start: SlowStart, gaps_ms: list[float], expected: list[int]) -> None:
    connections, at_ms = Connections(still(slow_start)), 0.0
    found = [trips(connections, at_ms)]  # a handshake more
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        found.append(trips(connections, at_ms))
    assert found == expected


def test_small_bodies_pay_no_slow_start() -> None:
    connections = Connections(still(SlowStart.ALWAYS))
    assert trips(connections, 0.0, INITIAL_WINDOW_BYTES) == 1
    assert trips(connections, 1.0, INITIAL_WINDOW_BYTES) == 0


def test_idle_connections_close() -> None:
    connections = Connections(still())
    assert trips(connections, 0.0, 100) == 1
    assert trips(connections, 59_000.0, 100) == 0
    assert trips(connections, 59_000.0 + 61_000.0, 100) == 1
    connections.close()
    assert trips(connections, 120_000.0, 100) == 1


def test_each_request_has_a_connection_of_its_own() -> None:
    connections = Connections(still())
    first, new = connections.take(100, 0.0)
    assert new == 1
    second, also_new = connections.take(100, 0.0)
    assert also_new == 1
    connections.give_back(first, 1.0)
    connections.give_back(second, 2.0)
    assert connections.take(100, 3.0)[1] == connections.take(100, 3.0)[1] == 0
    assert connections.take(100, 3.0)[1] == 1


def test_jitter_and_spikes_are_as_stated() -> None:
    network = NetworkPath(200.0, jitter=0.08, spike_share=0.0)
    ways = [network.one_way_ms(1, str(n), "up") for n in range(4_000)]
    logs = [math.log(way / 100.0) for way in ways]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.005)
    assert statistics.stdev(logs) == pytest.approx(0.08, rel=0.05)
    spiky = NetworkPath(200.0, jitter=0.0, spike_share=0.1, spike_ms=50.0)
    extra = [spiky.one_way_ms(1, str(n), "up") - 100.0 for n in range(10_000)]
    hit = [value for value in extra if value > 0.0]
    assert len(hit) / len(extra) == pytest.approx(0.1, abs=0.01)
    assert statistics.mean(hit) == pytest.approx(50.0, rel=0.1)
    assert statistics.stdev(hit) == pytest.approx(50.0, rel=0.15)  # exponential
    assert min(extra) >= 0.0


def test_draws_are_keyed() -> None:
    network = NetworkPath(200.0)
    assert network.one_way_ms(1, "a", "up") == network.one_way_ms(1, "a", "up")
    assert len({network.one_way_ms(s, k, w) for s in (1, 2) for k in "ab" for w in ("up", "down")}) == 8
    assert NetworkPath(0.0).one_way_ms(1, "a", "up") == 0.0


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        NetworkPath(-1.0)
    with pytest.raises(ValueError, match="spike_share"):
        NetworkPath(1.0, spike_share=1.5)


def test_a_connection_tells_whether_it_is_new_and_opening_takes_its_handshakes() -> None:
    path = NetworkPath(100.0, handshake_round_trips=2)
    connections = Connections(path)
    first, _ = connections.take(100, 0.0)
    connections.give_back(first, 1.0)
    again, _ = connections.take(100, 2.0)
    assert (first.anew, again.anew, path.opening_ms) == (True, False, 200.0)
