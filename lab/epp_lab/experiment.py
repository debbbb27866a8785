"""`epp lab experiments`: cells x entries x seeds, kept runs, and a table with intervals.

A run is known by its cell, entry and seed, so an experiment that was stopped goes on where it was. Entries of
a cell meet the same seeds: ratios to the baseline are paired.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import pkgutil
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp_lab import experiments
from epp_lab.compare.plan import listed, number_from
from epp_lab.compare.simulate import completed
from epp_lab.compare.stats import Floats, mean_interval
from epp_lab.origin import current_commit, origin
from epp_lab.page import page
from epp_lab.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


#: Fewer values bear no interval.
_LEAST_SEEDS = 5


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what, and how one run is made.

    Attributes:
        question: one sentence.
        cells: conditions: workload, fleet, faults.
        entries: what is compared; the first is the baseline.
        run: figures of one run by cell, entry and seed; picklable, a pure function of its arguments.
        measures: keys of what ``run`` returns that the table shows, in its order; empty for all.
        seeds: how many seeds a run takes unless asked otherwise.
        on_request: cells and entries that run only when they are named.
        events: measures that are 0 or 1: shown as a share, with Wilson's interval and without a ratio.
        ranges: measures whose spread over the seeds is asked for: shown as median and range, without a ratio.
        minutes: CPU time of the usual cells, entries and seeds, as the command reports it; for the list.
        summary: further Markdown of the runs, beneath the table.
        plots: figures of the runs as SVG, for a page beside the kept runs.
        takes_fleet: ``run`` takes the name of a fleet besides, as ``fleet``.
    """

    question: str
    cells: Collection[str]
    entries: Collection[str]
    run: Callable[..., Mapping[str, float]]
    measures: Sequence[str] = ()
    seeds: int = 8
    on_request: Sequence[str] = ()
    events: Sequence[str] = ()
    ranges: Sequence[str] = ()
    minutes: float = math.nan
    summary: Callable[[Sequence[CellRun]], str] | None = None
    plots: Callable[[Sequence[CellRun]], Sequence[str]] | None = None
    takes_fleet: bool = False


class CellRun(msgspec.Struct, frozen=True):
    """The figures of one cell, entry and seed, NaN where a run has none; and the CPU time that it took."""

    cell: str
    entry: str
    seed: int
    commit: str
    figures: dict[str, float | None]
    cpu_s: float = 0.0

    @property
    def key(self) -> tuple[str, str, int]:
        """What the run is known by."""
        return self.cell, self.entry, self.seed

    def value(self, measure: str) -> float:
        """Return one figure."""
        value = self.figures.get(measure)
        return math.nan if value is None else value


def _timed(
    run: Callable[..., Mapping[str, float]], cell: str, entry: str, seed: int
) -> tuple[Mapping[str, float], float]:
    """Make a run, and measure its CPU time in seconds with that of the processes it started."""
    before_s = sum(os.times()[:4])
    figures = run(cell, entry, seed)
    return figures, sum(os.times()[:4]) - before_s


def execute(
    experiment: Experiment,
    *,
    seeds: Sequence[int],
    jobs: int,
    kept: Path,
    cells: Sequence[str] = (),
    entries: Sequence[str] = (),
) -> list[CellRun]:
    """Make the runs that ``kept`` lacks and return all that were asked for, in order.

    Args:
        experiment: what to run.
        seeds: of each cell and entry.
        jobs: processes; 1 runs everything in this one.
        kept: file of JSON lines, added to after each run.
        cells: those to run; all but the ones on request if empty.
        entries: likewise.
    """
    cells = cells or [cell for cell in experiment.cells if cell not in experiment.on_request]
    entries = entries or [entry for entry in experiment.entries if entry not in experiment.on_request]
    keys = [(cell, entry, seed) for cell in cells for seed in seeds for entry in entries]
    done = {run.key: run for run in read_kept(kept)}
    missing = [key for key in keys if key not in done]
    kept.parent.mkdir(parents=True, exist_ok=True)
    commit = current_commit()
    work = partial(_timed, experiment.run)
    title = kept.stem
    with progress(sys.stderr) as step:
        step(title, 0, len(missing))
        for number, (at, (figures, cpu_s)) in enumerate(completed(work, missing, workers=jobs)):
            key = missing[at]
            floats: dict[str, float | None] = {name: float(value) for name, value in figures.items()}
            done[key] = run = CellRun(*key, commit, floats, round(cpu_s, 2))
            with kept.open("ab") as file:
                file.write(msgspec.json.encode(run) + b"\n")
            step(title, number + 1, len(missing))
    return [done[key] for key in keys]


def read_kept(path: Path) -> list[CellRun]:
    """Read kept runs, without a line that a killed process left unfinished."""
    runs: list[CellRun] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            runs.append(msgspec.json.decode(line, type=CellRun))
        except msgspec.DecodeError:
            continue
    return runs


def table(experiment: Experiment, runs: Sequence[CellRun]) -> str:
    """Write a Markdown table: a row for each cell and entry, means and paired ratios to the baseline.

    Intervals are of 95 %, from a bootstrap over the seeds; of fewer than five, the least and the most.
    A ratio is the geometric mean of the seeds' ratios; there is none where a figure is zero or below.
    Rows over all cells come last.
    """
    found = {run.key: run for run in runs}
    cells, entries = (
        list(dict.fromkeys(names)) for names in zip(*[run.key[:2] for run in runs], strict=True)
    )
    seeds = sorted({run.seed for run in runs})
    plain, measures = (*experiment.events, *experiment.ranges), _measures(experiment, runs)
    heads = ["cell", "entry"]
    for measure in measures:
        heads += [measure] if measure in plain else [measure, f"{measure} / `{entries[0]}`"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]

    values = partial(_values, found, seeds)
    ratios: dict[tuple[str, str], list[Floats]] = {}
    for cell in cells:
        for entry in entries:
            row = [cell, entry]
            for measure in measures:
                own = values(cell, entry, measure)
                row.append(_text(experiment, measure, own))
                if measure not in plain:
                    logs = _log_ratios(own, values(cell, entries[0], measure))
                    ratios.setdefault((entry, measure), []).append(logs)
                    row.append("" if entry == entries[0] else ratio_text(logs))
            lines.append(f"| {' | '.join(row)} |")
    for entry in entries[1:] if len(cells) > 1 else ():
        row = ["**all cells**", entry]
        for measure in measures:
            row += [""] if measure in plain else ["", ratio_text(np.mean(ratios[entry, measure], axis=0))]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def verdicts(experiment: Experiment, runs: Sequence[CellRun]) -> dict[tuple[str, str, str], str]:
    """Say how each figure stands to its baseline's, by cell, entry and measure."""
    found = {run.key: run for run in runs}
    cells, entries = (dict.fromkeys(names) for names in zip(*[run.key[:2] for run in runs], strict=True))
    baseline, *others = entries
    seeds, out = sorted({run.seed for run in runs}), {}
    for cell, entry, measure in itertools.product(cells, others, _measures(experiment, runs)):
        if measure not in (*experiment.events, *experiment.ranges):
            own, base = (_values(found, seeds, cell, name, measure) for name in (entry, baseline))
            low, high = _ends(_log_ratios(own, base))[:2]
            out[cell, entry, measure] = standing(*np.exp([low, high]))
    return out


def _measures(experiment: Experiment, runs: Sequence[CellRun]) -> Sequence[str]:
    return experiment.measures or list(dict.fromkeys(name for run in runs for name in run.figures))


def _values(
    found: Mapping[tuple[str, str, int], CellRun], seeds: Sequence[int], cell: str, entry: str, measure: str
) -> Floats:
    """List a figure by seed, NaN where a run is missing."""
    keys = ((cell, entry, seed) for seed in seeds)
    return np.array([found[key].value(measure) if key in found else math.nan for key in keys])


def standing(low: float, high: float) -> str:
    """Say where an interval of a ratio lies; `level` where it holds 1, or is not known."""
    return "lower" if high < 1.0 else "higher" if low > 1.0 else "level"


def _log_ratios(values: Floats, baseline: Floats) -> Floats:
    positive = (values > 0) & (baseline > 0)
    return np.log(np.where(positive, values, math.nan)) - np.log(np.where(positive, baseline, math.nan))


def interval(values: Floats) -> tuple[float, float, float]:
    """Return the mean of the known values and the ends of its interval, NaN for fewer than three values."""
    known = values[~np.isnan(values)]
    if len(known) > 2:
        return mean_interval(known)
    return float(known.mean()) if len(known) else math.nan, math.nan, math.nan


def _ends(values: Floats) -> tuple[float, float, bool]:
    """Return the ends of the known values' interval, or the least and the most, and whether it is these.

    It is these of few seeds, and where most and not all are the same: resamples of a studentised bootstrap
    then have no variance.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan, math.nan, True
    same = np.count_nonzero(np.isclose(known, np.median(known), rtol=0.0, atol=1e-12))
    if len(known) < _LEAST_SEEDS or len(known) > same > len(known) / 2:
        return float(known.min()), float(known.max()), True
    return *mean_interval(known)[1:], False


def share_interval(values: Floats) -> tuple[float, float, float]:
    """Return the share of ones among zeros and ones, and the ends of Wilson's interval."""
    n, share, z = len(values), float(values.mean()), 1.96
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def _text(experiment: Experiment, measure: str, values: Floats) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return "-"
    if measure in experiment.ranges:
        return f"{np.median(known):.4g} ({known.min():.4g} to {known.max():.4g})"
    if measure in experiment.events:
        share, low, high = share_interval(known)
        return f"{share:.4g} [{low:.4g}, {high:.4g}]"
    return mean_text(known, ".4g")


def ratio_text(logs: Floats) -> str:
    """Write the geometric mean of ratios, given their logarithms, as tables do."""
    return mean_text(logs, ".3f", np.exp)


def mean_text(values: Floats, form: str, scale: Callable[[Floats], Floats] = np.asarray) -> str:
    """Write the mean of the known values with its interval, of few with the least and the most."""
    known = values[~np.isnan(values)]
    if not len(known):
        return "-"
    *ends, plain = _ends(known)
    with np.errstate(over="ignore"):  # seeds that hardly differ leave an end open: infinite
        mean, low, high = scale(np.array([known.mean(), *ends]))
    if len(known) == 1:
        return f"{mean:{form}}"
    return (
        f"{mean:{form}} ({low:{form}} to {high:{form}})"
        if plain
        else f"{mean:{form}} [{low:{form}}, {high:{form}}]"
    )


def _kept(name: str) -> Path:
    """Return the file of an experiment's runs, unless the command names another."""
    return Path("build", "lab", f"{name}.jsonl")


def minutes_of(runs: Sequence[CellRun]) -> float:
    """Add up the CPU time that runs took."""
    return sum(run.cpu_s for run in runs) / 60


def names() -> list[str]:
    """List the experiments: a module each."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(experiments.__path__))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--list", action="store_true", help="each experiment and how long it takes")
    parser.add_argument("name", choices=names(), nargs="?", help="of the experiment")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="NAME --help lists them")


def find(name: str) -> Experiment:
    """Find the experiment of a name."""
    module = import_module(f"{experiments.__name__}.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment, or list all."""
    if arguments.list or arguments.name is None:
        for name in names():
            experiment = find(name)
            print(f"{name:<18}{experiment.minutes:>6g} min  {experiment.question}")
            if kept := read_kept(_kept(name)):
                print(f"{'':<18}{minutes_of(kept):>6.1f} min  measured here, for the {len(kept)} runs kept")
        print("Minutes of one core, about, unless measured here; --jobs N shares them among N.")
        print("Runs are kept: a stop loses one.")
        return 0
    return main(arguments.name, find(arguments.name), arguments.options)


def main(name: str, experiment: Experiment, argv: Sequence[str]) -> int:
    """Run an experiment from the command line and print its question, command, commits and table."""
    parser = argparse.ArgumentParser(prog=f"epp lab experiments {name}")
    parser.description = experiment.question
    parser.add_argument(
        "--seeds", type=number_from(1), default=experiment.seeds, help="how many (%(default)s)"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument(
        "--kept", type=Path, default=_kept(name), metavar="FILE", help="kept runs (%(default)s)"
    )
    for flag, known in (("cells", experiment.cells), ("entries", experiment.entries)):
        numbered = "; ".join(f"{number} {name}" for number, name in enumerate(known, 1)).replace("%", "%%")
        said = f"by commas; numbers, or names, which take double quotes where they have commas: {numbered}"
        parser.add_argument(f"--{flag}", type=listed(known), default=(), metavar="NAMES", help=said)
    if experiment.takes_fleet:
        parser.add_argument("--fleet", required=True, metavar="FILE", help="as `epp lab calibrate` wrote it")
    arguments = parser.parse_args(argv)
    if experiment.takes_fleet:
        experiment = replace(experiment, run=partial(experiment.run, fleet=arguments.fleet))
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    runs = execute(
        experiment,
        seeds=seeds,
        jobs=arguments.jobs,
        kept=arguments.kept,
        cells=arguments.cells,
        entries=arguments.entries,
    )
    print(f"{experiment.question}\n\n    epp lab experiments {shlex.join([name, *argv])}\n")
    # Kept runs may be older: each names its commit.
    commits = ", ".join(sorted({run.commit for run in runs}))
    made = origin() | {"commit": commits}
    print(f"version {made['version']}, commit {commits}, {made['date']}")
    print(f"seeds {seeds[0]} to {seeds[-1]}; {minutes_of(runs):.1f} min of CPU\n")
    text = table(experiment, runs)
    if experiment.summary:
        text += f"\n\n{experiment.summary(runs)}"
    print(text)
    if experiment.plots:
        file: Path = arguments.kept.with_suffix(".html")
        parts = (*experiment.plots(runs), f"<pre>{escape(text)}</pre>")
        file.write_text(page(experiment.question, made, *parts), encoding="utf-8")
        print(f"\nPlots: {file}")
    return 0
