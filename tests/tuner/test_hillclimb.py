"""The published search beside a picker: what it writes, within what bounds, and who stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.config.plan import parse_plan
from epp.config.schema import Config
from epp.errors import ConfigError
from epp.policies.gorgo import Gorgo
from epp_lab.tuner.hillclimb import BOX, START, Hillclimb, status_lines
from epp_lab.tuner.settings import TunerSettings
from epp_lab.tuner.setup import Setup
from epp_lab.tuner.state import OperatorRequest, Rules
from epp_lab.tuner.tuner import ask
from tests.kit.tunework import World

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp_lab.tuner.state import What

_BOUNDS = {name: (spec.low, spec.high) for name, spec in Gorgo.weight_specs.items()}


def beside(world: World, bounds: Mapping[str, tuple[float, float]] = _BOUNDS) -> Hillclimb:
    setup = Setup(
        policy="gorgo",
        book=world.book,
        rules=Rules(TunerSettings(), dict(bounds), {}),
        paths=world.paths,
        records=world.records,
        overrides=world.overrides,
        config=Config(),
        config_file=None,
    )
    return Hillclimb(setup, clock=world.clock, report=world.told.append, seed=1)


def live(world: World, search: Hillclimb, seconds: int) -> list[dict[str, float]]:
    """Serve so long; the weights that were on file, each once after the other."""
    seen: list[dict[str, float]] = []
    for _ in range(seconds):
        world.second()
        search.tick()
        text = world.paths.weights.read_bytes()
        found = parse_plan(text, "weights.yaml", policy="gorgo", bounds=world.book.bounds).weights
        if not seen or seen[-1] != found:
            seen.append(dict(found))
    return seen


def say(world: World, search: Hillclimb, what: What) -> None:
    ask(world.paths, OperatorRequest(what, "because"))
    search.tick()


def test_it_writes_new_weights_window_by_window_within_bounds_and_pickers_follow(tmp_path: Path) -> None:
    world = World(tmp_path)
    bounds = {**_BOUNDS, "rtt_weight": (0.4, 0.6)}
    seen = live(world, beside(world, bounds), 60)
    assert seen[0] == START
    assert len(seen) > 5
    for weights in seen:
        assert 0.4 <= weights["rtt_weight"] <= 0.6
        assert BOX["queue_weight"][0] <= weights["queue_weight"] <= BOX["queue_weight"][1]
    world.look()
    assert world.book.current.values["rtt_weight"] == seen[-1]["rtt_weight"]
    assert not world.picker_errors


def test_frozen_on_command_it_serves_the_best_until_it_is_thawed(tmp_path: Path) -> None:
    world = World(tmp_path)
    search = beside(world)
    live(world, search, 60)
    say(world, search, "freeze")
    best = search.memory.search.best
    assert live(world, search, 40) == [best]
    assert "frozen: because" in "\n".join(status_lines(world.paths, world.clock.wall_s()))
    search.close()
    search = beside(world)
    assert live(world, search, 20) == [best], "and stays so over a restart"
    say(world, search, "thaw")
    assert len(live(world, search, 60)) > 2


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    search = beside(world)
    live(world, search, 60)
    search.save()
    before = search.memory
    again = beside(world).memory
    assert (again.search, again.serial) == (before.search, before.serial)
    assert before.search.samples > 0


def test_a_policy_without_the_weights_that_the_paper_searched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which hillclimb searches"):
        beside(World(tmp_path), {"queued_weight": (0.1, 1.0)})
