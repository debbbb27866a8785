"""The guard over the whole fleet: harm that both arms suffer alike, and what is none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from epp.config.plan import parse_plan, render_plan
from epp.records.weight_files import WeightsPaths
from epp_lab.tuner import watch
from epp_lab.tuner.samples import Sample, Stamp
from epp_lab.tuner.settings import TunerSettings
from epp_lab.tuner.status import status_lines
from tests.kit.tuning import BOUNDS, NEW, Deployment, Effect, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

SLOW_MS = 1000.0
SETTINGS = TunerSettings()
BLOCK_S = SETTINGS.stages.block_s


def suffering(world: Deployment) -> Callable[[Mapping[str, float]], Effect]:
    """Whichever arm serves: while anything is on trial all are slow."""
    return lambda _: Effect(ttft=3.0) if world.plan.trial is not None else Effect()


def world_that_suffers() -> Deployment:
    world = Deployment(lambda _: Effect(), [NEW], settings=quick(baseline_s=900.0))
    world.effect = suffering(world)
    return world


def until_ended(world: Deployment) -> None:
    world.run(lambda w: w.asked == 1 and w.state.phase in ("baseline", "frozen"), ticks=200)


def test_a_trial_under_which_both_arms_suffer_is_ended(tmp_path: Path) -> None:
    world = world_that_suffers()
    until_ended(world)
    note = next(note for note in world.notes if "ended in" in note.reason)
    assert "whole fleet" in note.reason
    assert world.plan.trial is None
    assert world.plan.ended_for_fleet == 1
    parse_plan(render_plan(world.plan), "weights.yaml", policy="gorgo-ms", bounds=BOUNDS)
    places = WeightsPaths(tmp_path / "weights.yaml")
    said = "\n".join(status_lines(world.state, places, world.now_wall_s))
    assert "because the whole fleet suffered: 1" in said
    assert "cooling down" in said


def test_a_trial_without_harm_goes_on_while_load_and_latency_swing_together() -> None:
    world = Deployment(lambda _: Effect(), [NEW], settings=quick(baseline_requests=20_000))

    def slower_under_load(_: Mapping[str, float]) -> Effect:
        return Effect(ttft=world.rate_per_s / 6.0)

    world.effect = slower_under_load
    for _ in range(300):
        world.rate_per_s = 6.0 * (1.0 + 0.3 * math.sin(world.ticks / 12.0))
        world.tick()
    assert world.state.phase in ("screen", "ramp", "switchback")
    assert world.state.ended_for_fleet == 0
    assert world.state.watch.blocks > 50


def filled(*, per_s: int, slow_every: int, blocks: int, stamp: Stamp | None, seen: watch.Watch) -> float:
    """Blocks of regular traffic go on from what is there; the time of their end."""
    begin = max((part[0] for part in seen.recent), default=0) + 1
    for number in range(begin, begin + blocks):
        for i in range(round(per_s * BLOCK_S)):
            late = i % slow_every == 0
            watch.enter(
                seen,
                Sample(stamp, number * BLOCK_S + i / per_s, 100, ttft_ms=5000.0 if late else 100.0),
                SETTINGS,
            )
    return (begin + blocks) * BLOCK_S


def lived(*, before: int, during: int, per_s: int = 2, slow_every: int = 2) -> watch.Watch:
    seen = watch.Watch()
    end_s = filled(per_s=2, slow_every=20, blocks=before, stamp=None, seen=seen)
    watch.close(seen, SETTINGS, end_s, late_s=0.0, slow_ms=None)
    seen = watch.begin(seen)
    end_s = filled(
        per_s=per_s, slow_every=slow_every, blocks=during, stamp=Stamp("c", "incumbent", 0), seen=seen
    )
    watch.close(seen, SETTINGS, end_s, late_s=0.0, slow_ms=SLOW_MS)
    return seen


@pytest.mark.parametrize(
    ("before", "per_s", "slow_every", "ends"),
    [
        (30, 2, 2, True),
        (30, 2, 20, False),  # as before
        (30, 4, 2, False),  # twice the load was never seen before
        (5, 2, 2, False),  # too little to compare with
    ],
)
def test_harm_is_what_the_same_load_did_not_do_before(
    before: int, per_s: int, slow_every: int, *, ends: bool
) -> None:
    seen = lived(before=before, during=20, per_s=per_s, slow_every=slow_every)
    assert bool(watch.harmed(seen, SETTINGS)) == ends
    if per_s == 4 or before == 5:
        assert (seen.blocks, seen.alone) == (0, 20)
