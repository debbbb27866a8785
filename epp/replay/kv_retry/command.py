"""`epp replay --workload kv-retry`: policies by their time to the first correct answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.replay.console import progress, sentences
from epp.replay.files import save_report
from epp.replay.kv_retry.cell import RetryTask, run_retry
from epp.replay.kv_retry.document import document, encode
from epp.replay.kv_retry.kept import KeptTask, run_kept
from epp.replay.kv_retry.report import render, tables
from epp.replay.simulate import run_all
from epp.sim.oracle import ORACLES

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from epp.replay.simulate import PolicyChoice

#: Name -> whether questions share contexts.
WORKLOADS = {"kv-retry": False, "kv-retry-shared": True}
HELP = {
    "kv-retry": "key-value lookups at 4K to 64K in three languages, asked until they are right",
    "kv-retry-shared": "the same, five questions to a context",
}
DEFAULT_DRAWS = 100
#: Draws up to this one are for choosing weights; `--first-seed 1` is the next.
_CHOSEN_ON = 100
_CANDIDATES = ("laar", "laar-paper")


def run(arguments: argparse.Namespace, policies: tuple[PolicyChoice, ...], console: Console) -> int:
    """Run, print, write ``results.json`` and ``report.html``.

    Raises:
        EppError: an option that has no meaning here, a policy that cannot serve, or a folder that cannot be
            written.
    """
    _check(arguments, policies)
    names = [policy.name for policy in policies]
    candidate = arguments.candidate or next((name for name in _CANDIDATES if name in names), names[0])
    if candidate not in names:
        raise EppError(f"--candidate {candidate} is not among the policies that run: {', '.join(names)}")
    count = DEFAULT_DRAWS if arguments.seeds is None else arguments.seeds
    draws = [_CHOSEN_ON + arguments.first_seed + number for number in range(count)]
    tasks = [RetryTask(policies, draw, WORKLOADS[arguments.workload]) for draw in draws]
    with progress(sys.stderr) as step:

        def on_done(done: int) -> None:
            step("draws", done, len(tasks))

        on_done(0)
        if arguments.resume:
            kept = [KeptTask(task, arguments.out / "draws") for task in tasks]
            runs = run_all(run_kept, kept, workers=arguments.workers, on_done=on_done)
        else:
            runs = run_all(run_retry, tasks, workers=arguments.workers, on_done=on_done)
    found = document(arguments.workload, draws, names, runs, candidate)
    written = save_report(arguments.out, encode(found), render(found))
    console.print(*tables(found), *sentences(found.conclusion), sep="\n")
    console.print(f"\n{written}", markup=False)
    return 0


def _check(arguments: argparse.Namespace, policies: tuple[PolicyChoice, ...]) -> None:
    a = arguments
    other_load = a.sweep or a.shape or a.over_http or a.tune or a.load != 1.0 or a.seconds or a.open_loop
    if other_load or a.fleet != "paper" or a.lost_hits is not None or a.max_in_flight is not None:
        raise EppError(
            f"{a.workload} is a closed loop of its own on a fleet of its own: no --sweep, --shape, --load, "
            "--seconds, --open-loop, --max-in-flight, --fleet, --lost-hits, --tune or URL"
        )
    for policy in policies:
        if policy.name in ORACLES:
            raise EppError(f"{policy.name} sees a simulated fleet's truth, not whether answers are right")
