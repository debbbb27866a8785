"""The tuner measured: ``python -m bench.tuner``; ``--full`` for hours of it.

In this order, each with its n: the published search on its window, and the weights that it ends with over
seeds; the published search where the queue may be left out, and a candidate that herds, proposed to ours;
switchbacks played on simulated blocks, every set of weights against every other; the optimum of each cell;
tuning runs, with harm on windows held out, met by both sets of weights alike; drifts. Runs are kept in
``--folder``: what was run once, of the same source, is not run again, and a run may be stopped. Without
``--full`` each part gets its share of ``--minutes`` and starts no further run beyond it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import tuner_parts
from bench.kept import adding, lines
from bench.policy_runs import PACKAGE, source_digest
from bench.tuner_cells import CELLS, DRIFTS
from bench.tuner_drift import drift
from bench.tuner_guard import LOADS, guarded
from bench.tuner_played import WEIGHTS, played
from bench.tuner_report import PRODUCTION_RUNS, TUNING_RUNS, page, text_of
from bench.tuner_runs import PRODUCTION, SMALL, attainable, optimum, tuning_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from bench.tuner_runs import Effort

    Run = tuple[str, Callable[[], dict[str, Any]]]

#: Tuned policies: perturbed weights of the one, the published ones of the other.
_POLICIES = ("gorgo-ms", "gorgo")
_WINDOW_S = 1800.0
#: Requests of a run at most: 24 hours of the light cells, 12 of the others.
_LIVED_REQUESTS = 120_960
#: One tuning run in so many is lived through again without a tuner.
_PRICED_EVERY = 11


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement over seeds.

    Attributes:
        name: of it.
        share: of the minutes.
        runs: label and work, in order.
    """

    name: str
    share: float
    runs: Sequence[Run]


class _Line(msgspec.Struct, frozen=True):
    key: str
    part: str
    figures: dict[str, Any]


def parts(*, full: bool, best: Mapping[str, Mapping[str, float]]) -> Iterator[Part]:
    """What is run, in order.

    Args:
        full: all seeds and long trials.
        best: ``cell | policy`` -> its optimum, filled in while running.
    """
    p = tuner_parts
    free = "no queue"
    yield Part("published", 0.1, _searches("", free=False, window=128))
    yield Part("window of 64", 0.05, _searches("64", free=False, window=64))
    yield Part("unbounded", 0.1, _searches(free, free=True, window=128))
    yield Part("free rider", 0.2, [(f"{n} 30", partial(p.free_rider, n, hours=30)) for n in range(50)])
    yield Part("guard", 0.05, list(_guards(seeds=50)))
    yield Part("played", 0.1, list(_plays(seeds=3 if full else 1, pool_s=7200.0 if full else 2700.0)))
    yield Part("tuning", 0.2, list(_tuning(SMALL, TUNING_RUNS)))
    yield Part("production", 0.0, list(_tuning(PRODUCTION, PRODUCTION_RUNS)))
    yield Part("optimum", 0.05, [(key, partial(optimum, *key.split(" | "), budget=64)) for key in _keys()])
    yield Part("attainable", 0.05, list(_attainable(best)))
    yield Part("drift", 0.1, list(_drifts(hours=30, budget=64) if full else _drifts()))


def _searches(label: str, *, free: bool, window: int) -> list[Run]:
    runs: list[Run] = []
    for n in range(50):
        work = partial(tuner_parts.es_paper, n, free=free, duration_s=_WINDOW_S, window=window)
        runs.append((f"{n} {_WINDOW_S:g} {label}".strip(), work))
    return runs


def _plays(*, seeds: int, pool_s: float) -> Iterator[Run]:
    for n in range(seeds):
        for place in CELLS:
            for old, new in permutations(WEIGHTS, 2):
                label = f"{place} | {old} | {new} {n} {pool_s:g}"
                yield label, partial(played, place, old, new, n, pool_s=pool_s)


def _guards(*, seeds: int) -> Iterator[Run]:
    """Trials without harm on every load, after a quarter of an hour and an hour; harm on the steady one."""
    for n in range(seeds):
        for load in LOADS:
            for baseline_s in (900.0, 3600.0):
                yield f"{load} {n} {baseline_s:g}", partial(guarded, load, n, baseline_s=baseline_s, harm=1.0)
        for harm in (1.2, 1.4, 1.7):
            work = partial(guarded, "steady", n, baseline_s=900.0, harm=harm)
            yield f"steady {n} 900 {harm:g}", work


def _drifts(*, hours: int = 4, budget: int = 16) -> Iterator[Run]:
    for n in range(3):
        for what in DRIFTS:
            yield f"{what} {n} {hours} {budget}", partial(drift, what, n, hours=hours, budget=budget)


def _keys() -> list[str]:
    return [f"{place} | {policy}" for place in CELLS for policy in _POLICIES]


def _tuning(effort: Effort, runs: int) -> Iterator[Run]:
    """Every cell and policy once, then again with other seeds."""
    windows = 30
    keys = _keys()
    for number in range(runs):
        n, key = number // len(keys), keys[number % len(keys)]
        place, policy = key.split(" | ")
        hours = round(_LIVED_REQUESTS / CELLS[place].rate_rps / 3600.0)
        priced = number % _PRICED_EVERY == 0
        work = partial(
            tuning_run, place, policy, n, hours=hours, windows=windows, effort=effort, priced=priced
        )
        yield f"{key} {n} {hours} {windows} {effort.budget}", work


def _attainable(best: Mapping[str, Mapping[str, float]]) -> Iterator[Run]:
    """For every tuning run whose cell's optimum is known by the time that this is asked for."""
    keys = _keys()
    for number in range(TUNING_RUNS):
        n, key = number // len(keys), keys[number % len(keys)]
        if key in best:
            place, policy = key.split(" | ")
            yield f"{key} {n}", partial(attainable, place, policy, n, best=best[key])


def with_attainable(
    runs: Sequence[dict[str, Any]], known: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Tuning runs with what their optimum would have won, where that is known."""
    keys = [f"{run['cell']} | {run['policy']} {run['seed']}" for run in runs]
    return [
        {**run, "attainable": known[key]["gain"]} if key in known else run
        for run, key in zip(runs, keys, strict=True)
    ]


def main() -> int:
    """Run what is asked for and print what is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--full", action="store_true", help="no limit of time, all seeds")
    parser.add_argument("--minutes", type=float, default=13.0, help="in which runs are begun, without --full")
    parser.add_argument("--parts", default="", help="names joined by commas, all when left out")
    parser.add_argument("--folder", type=Path, default=Path("build/tuner"))
    parser.add_argument("--any-source", action="store_true", help="take kept runs of other sources too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    arguments = parser.parse_args()
    wanted = [name.strip() for name in arguments.parts.split(",")] if arguments.parts else []
    names = [part.name for part in parts(full=arguments.full, best={})]
    if unknown := set(wanted) - set(names):
        parser.error(f"--parts: no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    digest = "" if arguments.any_source else source()
    found: dict[str, list[dict[str, Any]]] = {}
    best: dict[str, Mapping[str, float]] = {}
    for part in parts(full=arguments.full, best=best):
        limit_s = float("inf") if arguments.full else part.share * arguments.minutes * 60.0
        limit_s = limit_s if not wanted or part.name in wanted else 0.0
        done = run(part, arguments.folder, digest, limit_s, workers=arguments.workers)
        found[part.name] = list(done.values())
        if part.name == "optimum":
            best.update({key: figures["weights"] for key, figures in done.items()})
        elif part.name == "attainable":
            for name in ("tuning", "production"):
                found[name] = with_attainable(found[name], done)
    print(text_of(found))
    (arguments.folder / "report.html").write_text(page(found))
    print(f"\nWritten: {arguments.folder}/report.html")
    return 0


def source() -> str:
    """Of everything that decides what a run comes to."""
    digest = hashlib.sha256(source_digest().encode())
    here = sorted(Path(tuner_parts.__file__).parent.glob("tuner_*.py"))
    others = {f"tuner_{name}" for name in ("report", "rehearsals", "search", "surface")}
    here = [file for file in here if file.stem not in others]
    for file in [*here, PACKAGE / "demo" / "tuner.py", PACKAGE / "demo" / "tuner_world.py"]:
        digest.update(file.read_bytes())
    rehearsing = [PACKAGE / "tune" / f"{name}.py" for name in ("calibrate", "rehearse")]
    for file in [*rehearsing, *sorted((PACKAGE / "tuner").glob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def run(
    part: Part, folder: Path, digest: str, limit_s: float, *, workers: int = 1
) -> dict[str, dict[str, Any]]:
    """The figures of a part's runs by label, those kept and those made now.

    Args:
        part: what.
        folder: of kept runs.
        digest: of the source; empty to take runs of any.
        limit_s: no run is begun later.
        workers: processes.
    """
    path = folder / f"{part.name.replace(', ', '-').replace(' ', '-')}.jsonl"
    known = {line.key: line.figures for line in lines(path, _Line)}
    out: dict[str, dict[str, Any]] = {}
    missing: list[Run] = []
    for label, work in part.runs:
        key = f"{digest} {label}"
        if not digest:
            key = next((name for name in reversed(known) if name.split(" ", 1)[1] == label), key)
        if key in known:
            out[label] = known[key]
        else:
            missing.append((label, work))
    with adding(path) as file:
        for label, figures in _made(missing, time.monotonic() + limit_s, workers):
            out[label] = msgspec.json.decode(msgspec.json.encode(figures))
            file.write(msgspec.json.encode(_Line(f"{digest} {label}", part.name, out[label])) + b"\n")
            file.flush()
            print(f"{part.name}: {label} done", file=sys.stderr, flush=True)
    return {label: out[label] for label, _ in part.runs if label in out}


def _made(runs: Sequence[Run], until_s: float, workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs as they end; none is begun when time is up."""
    if workers <= 1 or len(runs) <= 1:
        for label, work in runs:
            if time.monotonic() >= until_s:
                return
            yield label, work()
        return
    waiting = iter(runs)
    with ProcessPoolExecutor(workers) as pool:
        begun: dict[Future[dict[str, Any]], str] = {}
        while True:
            while len(begun) < workers and time.monotonic() < until_s:
                upcoming = next(waiting, None)
                if upcoming is None:
                    break
                begun[pool.submit(upcoming[1])] = upcoming[0]
            if not begun:
                return
            done, _ = wait(begun, return_when=FIRST_COMPLETED)
            for future in done:
                yield begun.pop(future), future.result()


if __name__ == "__main__":
    sys.exit(main())
