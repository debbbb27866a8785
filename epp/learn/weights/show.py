"""`epp weights show`: every weight in force, where it comes from, and the second arm of a trial."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.learn.tuner import setup as setups
from epp.learn.tuner.plan import Split
from epp.policies.registry import create
from epp.schedule.weights import WeightBook
from epp.server.files import read_file

if TYPE_CHECKING:
    import argparse

    from epp.learn.tuner.setup import Setup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    setups.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what a picker with these files has in force; 1 when one of them is refused."""
    setup = setups.read_setup(arguments, looking=True)
    book, problems = book_of(setup)
    for problem in problems:
        print(f"refused: {problem}", file=sys.stderr)
    for line in lines(book, setup, time.time()):
        print(line)
    return 1 if problems else 0


def book_of(setup: Setup) -> tuple[WeightBook, list[str]]:
    """The weights as a picker merges them, and why a file is refused."""
    policy = create(setup.policy)
    book = WeightBook(
        policy=setup.policy,
        specs=policy.weight_specs,
        configured=setup.config.policy.weights,
        bounds=setup.config.policy.bounds,
        source="configuration",
    )
    problems = []
    for layer, path in (("tuner", setup.paths.weights), ("override", setup.overrides)):
        if path is None:
            continue
        try:
            book.update(layer, read_file(path), str(path))
        except (ConfigError, OSError) as error:
            problems.append(str(error))
    return book, problems


def lines(book: WeightBook, setup: Setup, now_wall_s: float) -> list[str]:
    """A line a weight, then the trial."""
    trial = book.plan.trial
    running = trial is not None and trial.block_at(now_wall_s) is not None
    out = [f"policy {book.policy}, version {book.current.version}"]
    for name, value in sorted(book.current.values.items()):
        low, high = book.bounds[name]
        tuned = setup.rules.bounds.get(name, (low, high))
        span = f"[{low:g}, {high:g}]" + (
            "" if tuned == (low, high) else f", tuned in [{tuned[0]:g}, {tuned[1]:g}]"
        )
        other = ""
        if running and book.arm_weights.values[name] != value:
            other = f"  other arm: {book.arm_weights.values[name]:.6g}"
        out.append(f"{name} = {value:.6g}  ({book.current.sources[name]}; {span}){other}")
    if trial is not None and running:
        kind = f"split, {trial.share:.0%} of the sessions" if isinstance(trial, Split) else "switchback"
        left_s = trial.valid_until_wall_s - now_wall_s
        out.append(f"trial {trial.id}: {trial.arm} in a {kind}; ends in {left_s:.0f} s unless renewed")
    if book.plan.reason:
        out.append(f"reason: {book.plan.reason}")
    return out
