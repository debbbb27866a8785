from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_lab.compare.trace import TraceRequest
from epp_lab.sim.engine_class import H100, L40S_X2
from epp_lab.sim.loop import Loop, Rank
from epp_lab.sim.network import Connection, Connections, NetworkPath
from epp_lab.sim.prompts import Prompts
from epp_lab.sim.scenario import parse_fleet
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.simfleet import request


def test_a_fleet_in_one_line() -> None:
    fleet = parse_fleet("l40s-x2@20, h100@102.5*2")
    assert [(r.engine_class, r.network.rtt_ms) for r in fleet.replicas] == [
        (L40S_X2, 20.0), (H100, 102.5), (H100, 102.5),
    ]  # fmt: skip
    assert len({r.address for r in fleet.replicas}) == 3
    assert fleet.replicas[1].region == fleet.replicas[2].region != fleet.replicas[0].region
    assert parse_fleet("a30").replicas[0].network.rtt_ms == 0.0


@pytest.mark.parametrize("text", ["", "l40s@20", "h100@-1", "h100@1*0", "a30,"])
def test_what_is_no_fleet_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not class@rtt_ms.*l40s-x2"):
        parse_fleet(text)


# Prompts


def test_picker_and_engine_agree_on_what_is_shared_and_on_nothing_else() -> None:
    load = generate(DEMO, 1)[:150]
    prompts = Prompts(load)
    for left in range(0, 150, 7):
        for right in range(1, 150, 11):
            ids = _common(load[left].block_ids, load[right].block_ids)
            measured = _common(prompts.measured(left).blocks, prompts.measured(right).blocks)
            jobs = _common(prompts.job(left, miss=False).blocks, prompts.job(right, miss=False).blocks)
            full = min(r.prompt_tokens // r.block_tokens for r in (load[left], load[right]))
            assert measured == min(ids, full)
            assert jobs == ids
    seen = set(prompts.measured(3).blocks) & set(prompts.job(3, miss=False).blocks)
    assert not seen


def _common(left: object, right: object) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):  # type: ignore[call-overload]  # any two sequences
        if a != b:
            break
        count += 1
    return count


def test_block_ids_may_be_any_64_bits_signed_or_not() -> None:
    load = [
        replace(request(0.0, prompt_tokens=20), block_ids=ids) for ids in ((1, 2**64 - 1), (1, -1), (1, 2))
    ]
    signed, unsigned, other = (Prompts([r, load[0]]).measured(0).blocks for r in (load[1], load[0], load[2]))
    assert signed == unsigned != other


def turn(
    tokens: int, *, ids: int, output: int = 20, starts: tuple[int, ...] = (), session: str = "s"
) -> TraceRequest:
    return TraceRequest(
        at_ms=0.0, session=session, user="u", prompt_tokens=tokens, output_tokens=output,
        block_ids=tuple(range(ids)), block_tokens=10, turn_starts=starts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("later", "answer_blocks"),
    [
        (turn(100, ids=10), 3),  # blocks 4, 5 and 6 of which the answer fills 45 to 65
        (turn(100, ids=10, starts=(0, 45, 65)), 3),
        (turn(100, ids=10, starts=(0, 40)), 0),  # another message begins there
        (turn(60, ids=6), 0),  # too short for the answer
        (turn(45, ids=5), 0),  # sent again
        (turn(100, ids=10, session="t"), 0),  # somebody else's
    ],
)
def test_answers_become_what_the_next_turn_says(later: TraceRequest, answer_blocks: int) -> None:
    prompts = Prompts([turn(45, ids=5), turn(45, ids=5), later])
    for index in (0, 1):  # sent twice: both answers are taken up
        answer = prompts.job(index, miss=False).answer_blocks
        assert list(answer) == list(prompts.job(2, miss=False).blocks[4 : 4 + answer_blocks])


# Virtual time


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Rank)), max_size=40))
def test_actions_run_by_time_rank_and_insertion(items: list[tuple[int, Rank]]) -> None:
    loop, ran = Loop(), []
    for number, (at_ms, rank) in enumerate(items):
        loop.at(float(at_ms), rank, lambda *args: ran.append((loop.now_ms, *args)), rank, number)
    loop.run(lambda: True)
    assert ran == sorted((float(at_ms), rank, number) for number, (at_ms, rank) in enumerate(items))


# The network


def still() -> NetworkPath:
    return NetworkPath(100.0, jitter=0.0, spike_share=0.0)


def trips(connections: Connections, at_ms: float, body_bytes: int = 80_000) -> int:
    """One request that takes no time."""
    foreseen = connections.preview(body_bytes, at_ms)
    connection, round_trips = connections.take(body_bytes, at_ms)
    connections.release(connection, at_ms)
    assert foreseen == round_trips
    return round_trips


# 80 kB: 14.6 at once, then 29.2 and 58.4.
@pytest.mark.parametrize(
    ("gaps_ms", "expected"),
    [
        ([10.0, 10.0], [3, 1, 0]),
        ([10_000.0, 700.0], [3, 2, 2]),  # long idle: as if new
        ([10.0, 700.0], [3, 1, 1]),  # two timeouts of 300 ms: 116.8 kB become 29.2
    ],
)
def test_windows_grow_and_fall_back(gaps_ms: list[float], expected: list[int]) -> None:
    connections, at_ms = Connections(still()), 0.0
    found = [trips(connections, at_ms)]  # a handshake more
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        found.append(trips(connections, at_ms))
    assert found == expected
    for body_bytes, extra in ((14_600, 0), (14_601, 1), (43_801, 2), (108_000, 3)):
        assert Connection().upload_round_trips(body_bytes) == extra


def test_idle_connections_close() -> None:
    connections = Connections(still())
    assert trips(connections, 0.0, 100) == 1
    assert trips(connections, 59_000.0, 100) == 0
    assert trips(connections, 59_000.0 + 61_000.0, 100) == 1
    connections.close()
    assert trips(connections, 120_000.0, 100) == 1


def test_jitter_and_spikes_are_as_stated() -> None:
    network = NetworkPath(200.0, jitter=0.08, spike_share=0.0)
    ways = [network.one_way_ms(1, str(n), "up") for n in range(4_000)]
    logs = [math.log(way / 100.0) for way in ways]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.005)
    assert statistics.stdev(logs) == pytest.approx(0.08, rel=0.05)
    spiky = NetworkPath(200.0, jitter=0.0, spike_share=0.1)
    extra = [spiky.one_way_ms(1, str(n), "up") - 100.0 for n in range(10_000)]
    hit = [value for value in extra if value > 0.0]
    assert len(hit) / len(extra) == pytest.approx(0.1, abs=0.01)
    assert statistics.mean(hit) == pytest.approx(100.0, rel=0.1)
    assert statistics.stdev(hit) == pytest.approx(100.0, rel=0.15)  # exponential
    assert min(extra) >= 0.0
