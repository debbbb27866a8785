"""What a picker hears of simulated caches is what these hold, but for what is lost for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epp.policies.registry import create
from epp_lab.sim.engine_class import ENGINE_CLASSES, L40S_X2, EngineClass
from epp_lab.sim.fleet import FleetSim
from epp_lab.sim.scenario import Event, EventOptions, FleetSpec, Happening, WindowOptions, parse_fleet
from epp_lab.workloads.art_chat import DEMO, generate

HYBRID = replace(ENGINE_CLASSES["l40s-x2-hybrid"], states_at_blocks=True)
HAPPENS = tuple(
    Event(at_s, "l40s-x2-1:8000", what)
    for at_s, what in ((8.0, Happening.CLEAR), (14.0, Happening.DIE), (15.0, Happening.REVIVE))
)


def played(events: EventOptions, engine: EngineClass = L40S_X2) -> FleetSim:
    engine = replace(engine, kv_capacity_tokens=100_000)
    replicas = tuple(replace(one, engine_class=engine) for one in parse_fleet("l40s-x2@2*2").replicas)
    options = WindowOptions(time_scale=4.0, events=events)
    policy, fleet = create("gorgo-ms"), FleetSpec(replicas, HAPPENS)
    sim = FleetSim(generate(DEMO, 1), fleet, policy, weights={}, seed=1, options=options)
    sim.run()
    end_ms = sim.loop.now_ms + 1e3  # the last messages
    sim.loop.run(lambda: sim.loop.now_ms < end_ms)
    return sim


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_replays_and_new_sequences_leave_the_picker_with_what_each_cache_holds(loss: float) -> None:
    sim = played(EventOptions(loss=loss))
    datastore = sim._scheduler.datastore
    caches = datastore.engine_caches
    assert caches is not None
    for address, replica in sim.replicas.items():
        slot = datastore.slot_of(address)
        assert slot is not None
        held_tokens = caches.index.held(slot) * sim.prompts.block_tokens
        assert 0 < held_tokens == replica.engine.snapshot().idle_tokens
    assert set(caches.problems(sim.loop.now_ms / 1e3).values()) == {""}


def test_what_is_lost_for_good_is_not_believed() -> None:
    sim = played(EventOptions(loss=0.2, replays=False))
    caches = sim._scheduler.datastore.engine_caches
    assert caches is not None
    assert set(caches.problems(sim.loop.now_ms / 1e3).values()) == {"lost"}


def test_states_of_a_hybrid_model_are_told_as_a_group_of_their_own() -> None:
    sim = played(EventOptions(), HYBRID)
    expected = true = right = 0
    for one in sim._results:
        expected, true = expected + one.believed_cached_tokens, true + one.cached_tokens
        right += min(one.believed_cached_tokens, one.cached_tokens)
    assert right / expected > 0.96
    assert right / true > 0.96
