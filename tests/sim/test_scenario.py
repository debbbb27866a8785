from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.compare.trace import TraceRequest
from epp.lab.sim.engine_class import ENGINE_CLASSES, H100, L40S_X2
from epp.lab.sim.loop import Loop, Rank
from epp.lab.sim.prompts import Prompts
from epp.lab.sim.scenario import Affinity, FleetSpec, ReplicaSpec, WindowOptions, parse_fleet, regional_fleet
from epp.lab.workloads.art_chat import DEMO, generate
from tests.kit.simfleet import request


def test_a_fleet_in_one_line() -> None:
    fleet = parse_fleet("l40s-x2@20, h100@102.5*2")
    assert [(r.engine_class, r.network.rtt_ms) for r in fleet.replicas] == [
        (L40S_X2, 20.0), (H100, 102.5), (H100, 102.5),
    ]  # fmt: skip
    assert len({r.address for r in fleet.replicas}) == 3
    assert fleet.replicas[1].region == fleet.replicas[2].region != fleet.replicas[0].region
    assert parse_fleet("a30").replicas[0].network.rtt_ms == 0.0


@pytest.mark.parametrize("name", sorted(ENGINE_CLASSES))
def test_every_class_has_its_place_in_a_line(name: str) -> None:
    assert parse_fleet(f"{name}@1").replicas[0].engine_class is ENGINE_CLASSES[name]


@pytest.mark.parametrize(
    "text", ["", "l40s@20", "l40s-x2@", "h100@-1", "h100@1*0", "h100@1*x", "h100 1", "a30,"]
)
def test_what_is_no_fleet_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not class@rtt_ms.*l40s-x2"):
        parse_fleet(text)


def test_wrong_scenarios_are_refused() -> None:
    replica = ReplicaSpec("a:1", L40S_X2)
    for wrong in ((), (replica, replica)):
        with pytest.raises(ValueError, match="different addresses"):
            FleetSpec(wrong)
    with pytest.raises(ValueError, match="lost_hit_share"):
        replace(replica, lost_hit_share=2.0)
    with pytest.raises(ValueError, match="probe_factor"):
        replace(replica, probe_factor=0.0)
    with pytest.raises(ValueError, match="kv_report_factor"):
        replace(replica, kv_report_factor=-1.0)
    for changes in ({"time_scale": 0.0}, {"max_in_flight": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            replace(WindowOptions(), **changes)


def test_the_published_fleet() -> None:
    fleet = regional_fleet(L40S_X2, lost_hit_share=0.3)
    assert [r.network.rtt_ms for r in fleet.replicas] == [20.0, 102.0, 211.0]
    assert {r.lost_hit_share for r in fleet.replicas} == {0.3}


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


def test_a_prompt_is_measured_by_its_full_blocks() -> None:
    prompts = Prompts([request(0.0, prompt_tokens=45)])
    measured = prompts.measured(0)
    assert (measured.prompt_tokens, len(measured.blocks), measured.block_tokens) == (45, 4, 10.0)
    assert all(0 <= block < 2**64 for block in measured.blocks)
    assert len(prompts.job(0, miss=False).blocks) == 5


def test_block_ids_may_be_any_64_bits_signed_or_not() -> None:
    load = [
        replace(request(0.0, prompt_tokens=20), block_ids=ids) for ids in ((1, 2**64 - 1), (1, -1), (1, 2))
    ]
    signed, unsigned, other = (Prompts([r, load[0]]).measured(0).blocks for r in (load[1], load[0], load[2]))
    assert signed == unsigned != other
    with pytest.raises(ValueError, match="64 bits"):
        Prompts([replace(load[0], block_ids=(1, 2**64))])


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


def test_affinity_keys() -> None:
    load = [turn(45, ids=5), turn(500, ids=50), turn(501, ids=50, session="t"), turn(7, ids=1)]
    prompts = Prompts(load)
    assert prompts.affinity_key(0, Affinity.SESSION) == "s"
    assert prompts.affinity_key(0, Affinity.USER) == "u"
    assert prompts.affinity_key(0, Affinity.NONE) == ""
    keys = [prompts.affinity_key(index, Affinity.PREFIX) for index in range(4)]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3


def test_loads_that_cannot_be_simulated() -> None:
    with pytest.raises(ValueError, match="one size"):
        Prompts([request(0.0), replace(request(0.0), block_tokens=16)])
    assert Prompts([]).block_tokens == 1


# Virtual time


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Rank)), max_size=40))
def test_actions_run_by_time_rank_and_insertion(items: list[tuple[int, Rank]]) -> None:
    loop, ran = Loop(), []
    for number, (at_ms, rank) in enumerate(items):
        loop.at(float(at_ms), rank, lambda *args: ran.append((loop.now_ms, *args)), rank, number)
    loop.run(lambda: True)
    assert ran == sorted((float(at_ms), rank, number) for number, (at_ms, rank) in enumerate(items))
    assert loop.steps == len(items)


def test_time_does_not_run_backwards() -> None:
    loop = Loop()
    loop.at(5.0, Rank.REPORT, lambda: None)
    loop.run(lambda: True)
    with pytest.raises(ValueError, match="backwards"):
        loop.at(4.0, Rank.REPORT, lambda: None)


def test_the_loop_stops_when_the_work_is_done() -> None:
    loop, ticks = Loop(), []

    def tick() -> None:
        ticks.append(loop.now_ms)
        loop.at(loop.now_ms + 1.0, Rank.SIGNAL, tick)

    loop.at(0.0, Rank.SIGNAL, tick)
    loop.run(lambda: len(ticks) < 3)
    assert ticks == [0.0, 1.0, 2.0]
