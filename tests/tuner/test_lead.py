"""Sidecars of several pickers: those of the leader work, the others wait, and who takes over goes on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from epp.feeds.lead import LeadFile, _portable
from epp_lab.sidecar.process import Turn
from epp_lab.tuner.machine import step
from epp_lab.tuner.state import Observed
from epp_lab.tuner.trials import _SKEW_PAUSE_S
from tests.kit.tunework import GOOD, World
from tests.kit.tuning import NEW, Deployment, Effect, when_new

if TYPE_CHECKING:
    from pathlib import Path


class Noted:
    """Work that notes what it is asked."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        notes.append("begin")

    def tick(self) -> None:
        self._notes.append("tick")

    def close(self) -> None:
        self._notes.append("close")

    def drop(self) -> None:
        self._notes.append("drop")


def test_a_sidecar_works_while_its_picker_leads_and_says_once_that_it_waits() -> None:
    notes: list[str] = []
    lead = LeadFile(leads=False)
    turn = Turn(lambda: Noted(notes), lambda: lead, notes.append)
    for _ in range(3):
        turn.tick()
    assert notes == ["waiting: nobody leads the pickers"]
    notes.clear()
    lead = LeadFile(leads=True, term=2, leader="me")
    turn.tick()
    turn.tick()
    assert notes == ["this picker leads, in term 2", "begin", "tick", "tick"]
    notes.clear()
    lead = LeadFile(leads=False, term=3, leader="other")
    turn.tick()
    turn.tick()
    assert notes == ["drop", "waiting: other leads the pickers"], "it writes nothing any more"
    notes.clear()
    turn.close()
    assert notes == []
    lead = LeadFile(leads=True, term=4, leader="me")
    turn.tick()
    turn.close()
    assert notes[-1] == "close"
    lead = LeadFile(leads=False)
    turn.close()
    assert notes[-1] == "drop", "another leads by now"


def test_who_takes_over_goes_on_with_the_trial_but_not_with_its_open_blocks(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = World(tmp_path / "one", [GOOD])
    first.start()
    first.until("switchback")
    first.run(60)
    assert first.tuner is not None
    first.tuner.save()
    units = first.state.record.units
    assert units
    before = first.state.trial
    assert before is not None
    first.die()
    second = World(tmp_path / "two", [], wall_s=first.clock.wall_s() + 10.0)
    shutil.copy(first.paths.weights, second.paths.weights)
    memory = _portable(first.paths.memory.read_bytes())
    assert memory is not None
    second.paths.memory.write_bytes(memory)
    second.run(20)  # the first one had these, of its own and of others
    second.start()
    assert second.state.phase == "switchback"
    assert second.state.record.units == units
    assert second.state.trial is not None
    assert second.state.trial.id != before.id
    assert second.tuner is not None
    assert second.tuner.feed.state.seen == 0
    second.until("probation")
    assert second.state.incumbent == GOOD


def test_clocks_that_differ_by_more_than_a_tenth_of_a_block_pause_a_trial() -> None:
    world = Deployment(when_new(Effect(ttft=0.9)), [NEW])
    world.run(lambda w: w.state.phase == "screen" and w.state.trial is not None, ticks=200)

    def paused(skew_s: float, after_s: float) -> str:
        world.now_wall_s += after_s
        step(world.state, Observed(world.now_wall_s, (), skew_s), world.rules)
        return world.state.paused

    assert not paused(5.5, 1.0)
    for _ in range(40):
        assert paused(7.0, 1.0) == "the clocks of pickers differ by 7 s"
        assert world.state.trial is None
    assert not paused(0.0, _SKEW_PAUSE_S)
    assert world.state.trial is not None
