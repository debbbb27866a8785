"""What an operator is told of the tuner, in every phase of a life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.learn.tuner.status import status_lines
from tests.kit.tunework import GOOD, World

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {
    "baseline": (
        "not enough evidence (",
        " of 200 requests, ",
        " of 30 s)",
        "next: the incumbent's quantile",
    ),
    "screen": ("split at 30%: not enough evidence (", "candidate 1: ", "next: where no harm shows, 50% of"),
    "ramp": ("split at 50%: not enough evidence (", "next: where no harm shows, the switchback"),
    "switchback": (
        "switchback: not enough evidence (3 of 8 pairs), at most 60",
        "objective: slow requests [",
        "guard: hottest endpoint [",
        "verdict so far: 3 pairs of at least 8",
        "next: promotion, if",
    ),
    "probation": (
        "the incumbent before: ",
        "probation: not enough evidence (3 of 8 pairs); evidence of regret e^",
        "next: the new weights stay, or on regret",
    ),
}


def test_every_phase_is_told_with_its_evidence(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    world.start()
    told: dict[tuple[str, int], str] = {}
    for _ in range(1200):
        world.second()
        key = world.state.phase, len(world.state.record.units)
        if key not in told:
            lines = status_lines(world.state, world.paths, world.clock.wall_s())
            told[key] = "\n".join(lines)
        if key == ("probation", 3):
            break
    assert {phase for phase, _ in told} >= set(WORDS)
    for phase, words in WORDS.items():
        units = 3 if phase in ("switchback", "probation") else 0
        for word in words:
            assert word in told[phase, units], (phase, told[phase, units])
    last = max(units for phase, units in told if phase == "switchback")
    assert f"enough evidence to be judged ({last} of 8 pairs)" in told["switchback", last]
    assert "1: 2023-11-14 22:" in told["probation", 0], "the promotion, with its time of day"


def test_whether_the_tuner_runs_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    world.run(4)
    now_wall_s = world.paths.memory.stat().st_mtime  # the file's clock is the real one

    def first(after_s: float) -> str:
        return status_lines(world.state, world.paths, now_wall_s + after_s)[0]

    assert ", last wrote 35 s ago; policy gorgo" in first(35.1)
    world.lock.close()
    assert first(1.0) == "tuner: not running; policy gorgo"
