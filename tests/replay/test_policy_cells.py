"""The cells that policies are judged on: what they cover, and that each runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epp.replay.policy_cells import (
    DEVELOPMENT_SEEDS,
    POLICY_CELLS,
    SCORING_SEEDS,
    TUNING_SEEDS,
    PolicyCell,
    policy_cells,
)
from epp.replay.simulate import PolicyChoice, Task, run_task
from epp.sim.scenario import Happening

SECONDS = 20.0
BY_NAME = {cell.name: cell for cell in POLICY_CELLS}


def shortened(cell: PolicyCell) -> Task:
    """The cell's first seconds, with what happens to its fleet moved into them."""
    source = cell.cell.source
    end_s = max((event.at_s for event in cell.fleet.events), default=1.0)
    seconds = SECONDS * cell.cell.pace
    events = tuple(replace(e, at_s=0.5 * seconds * e.at_s / end_s) for e in cell.fleet.events)
    return Task(
        # A whole load at a low rate is cheaper to make than the beginning of one at its own.
        replace(cell.cell, source=replace(source, rate=0.1 * source.rate, until_s=100.0), load=10.0),
        replace(cell.fleet, events=events),
        PolicyChoice("gorgo"),
        DEVELOPMENT_SEEDS[0],
    )


@pytest.mark.parametrize("load", sorted({name.split(" / ")[0] for name in BY_NAME}))
def test_every_cell_runs(load: str) -> None:
    for cell in POLICY_CELLS:
        if cell.name.startswith(f"{load} / "):
            figures = run_task(shortened(cell)).figures
            assert figures.requests > 5, cell.name
            assert figures.errors <= 0.3 * figures.requests, cell.name


def test_names_are_unique_and_seeds_apart() -> None:
    assert len(BY_NAME) == len(POLICY_CELLS)
    seeds = [*TUNING_SEEDS, *DEVELOPMENT_SEEDS, *SCORING_SEEDS]
    assert len(set(seeds)) == len(seeds)
    assert len(SCORING_SEEDS) >= 20


def test_every_load_meets_every_fleet_and_happening() -> None:
    matched = [cell.name.split(" / ") for cell in POLICY_CELLS if cell.group == "matched"]
    loads, fleets, happenings = ({parts[i] for parts in matched} for i in range(3))
    assert len(loads) == 7
    assert len(fleets) == 4
    assert len(happenings) == 3
    assert len(matched) == 7 * 4 * 3


def test_policies_are_tuned_on_a_steady_fleet() -> None:
    failing = BY_NAME["mooncake / six / one fails"]
    assert [event.what for event in failing.fleet.events] == [Happening.DIE, Happening.REVIVE]
    assert failing.tuning_fleet.events == ()
    assert failing.tuning_fleet.replicas == failing.fleet.replicas


def test_events_fall_into_the_judged_part_of_the_window() -> None:
    for cell in POLICY_CELLS:
        length_s = (cell.cell.source.until_s or 1800.0) * cell.cell.pace
        for event in cell.fleet.events:
            assert 300.0 < event.at_s < 0.9 * length_s, cell.name


def test_the_picker_is_told_the_usual_class_of_an_unusual_engine() -> None:
    for cell in POLICY_CELLS:
        told = {spec.known_as or spec.engine_class.name for spec in cell.fleet.replicas}
        assert told <= {"l40s-x2", "h100"}, cell.name


def test_one_thing_is_wrong_in_each_cell_of_a_belief() -> None:
    right = BY_NAME["mooncake / three regions / steady"]
    for cell in POLICY_CELLS:
        if cell.group == "belief" and cell.name.startswith("mooncake"):
            changed = (cell.cell.reports != right.cell.reports) + (cell.fleet != right.fleet)
            assert changed == 1, cell.name


def test_a_recorded_trace_takes_the_place_of_the_generator() -> None:
    cells = {cell.name: cell for cell in policy_cells(mooncake="rows.jsonl")}
    source = cells["mooncake / one region / steady"].cell
    assert source.source.trace == "rows.jsonl"
    assert (source.source.part, source.tuning and source.tuning.part) == ("judge", "tune")
    assert source.load == pytest.approx(8 / 3)
    assert cells.keys() == BY_NAME.keys()
