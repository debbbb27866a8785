"""What a learned decision costs at rising rates, and while a learner trains on the same machine.

    python -m bench.lodestar_overhead          # about a minute

Decisions of the real picker with a network of the paper's size, 16 endpoints, one by one at their rate. Told
are the wall time of a decision, which a busy machine stretches, and the CPU time of its thread, what the
decision itself takes. Whoever trains is another process, as `epp learn` is, at its priority; it is stopped
and let go on in turns (SIGSTOP, SIGCONT), so that both halves of the comparison meet the same machine.
Figures of two halves of one run compare, those of two machines do not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from epp.bench.core import batch
from epp.bench.learned import model
from epp.bench.rig import Rig
from epp.learner.fitting import Origin, fit
from epp.learner.samples import Sample
from epp.learner.settings import LearnerSettings
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Event

    from epp.decide.in_flight import Ask

RATES = (10.0, 20.0, 40.0, 80.0)
_ENDPOINTS, _PROMPTS, _SEED = 16, 60, 7
#: As `epp learn` sets it for itself.
_NICE = 10
#: Rate while somebody trains, and turns of each kind.
_BESIDE_RPS, _TURNS = 40.0, 4


@dataclass(slots=True)
class Times:
    """Milliseconds of each decision."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def told(self) -> str:
        """Median and 99th percentile of both."""
        parts = []
        for name, values in (("wall", self.wall), ("CPU", self.cpu)):
            middle, high = np.percentile(values, (50, 99))
            parts.append(f"{name} p50 {middle:.2f} ms, p99 {high:.2f} ms")
        return "; ".join(parts)


class Desk:
    """A picker with a model, and requests to decide."""

    def __init__(self) -> None:
        self._rig = Rig(_ENDPOINTS, policy=Lodestar.name)
        self._rig.picker.replace_policy(Lodestar(model()))
        given = batch(1_000, _PROMPTS, _SEED)
        for body in given.earlier:
            self._rig.cache(body)
        parsed = [self._rig.parse(one) for one in given.requests]
        self._asks: Sequence[Ask] = [self._rig.ask(one, self._rig.measure(one), 0) for one in parsed]
        self._number = 0

    def decide(self, times: Times | None) -> None:
        """One decision, and its end."""
        ask = self._asks[self._number % len(self._asks)]
        self._number += 1
        now_s = self._rig.clock.mono_s()
        wall, cpu = time.perf_counter(), time.thread_time()
        decision = self._rig.picker.pick(ask, now_s, 1.7e9)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        self._rig.picker.end(decision.id, "stream-end", now_s)
        if times is not None:
            times.wall.append(1e3 * wall)
            times.cpu.append(1e3 * cpu)

    def paced(self, rate_rps: float, lasts_s: float, times: Times) -> None:
        """Decisions at a rate for a time."""
        begun = time.perf_counter()
        for number in range(int(rate_rps * lasts_s)):
            wait_s = begun + number / rate_rps - time.perf_counter()
            if wait_s > 0.0:
                time.sleep(wait_s)
            self.decide(times)


def train(begun: Event) -> None:
    """Train on full pools again and again, as `epp learn` does when rounds are due; never returns."""
    os.nice(_NICE)
    settings, random = LearnerSettings(), np.random.default_rng(1)
    width = len(settings.network.features)
    rows = random.random((settings.data.recent + settings.data.replay, width))
    samples = [Sample(0.0, row, "a30", float(100.0 + 900.0 * row[0] * row[1])) for row in rows]
    begun.set()
    number = 0
    while True:
        number += 1
        fit(samples, settings, Origin(len(samples), number, 0.0, number))


def beside_training(desk: Desk, lasts_s: float) -> tuple[Times, Times]:
    """Decisions without and with somebody who trains, in turns."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    learner = context.Process(target=train, args=(begun,), daemon=True)
    learner.start()
    alone, beside = Times(), Times()
    try:
        if not begun.wait(120.0) or learner.pid is None:
            sys.exit("the training did not begin")
        for _ in range(_TURNS):
            os.kill(learner.pid, signal.SIGSTOP)
            desk.paced(_BESIDE_RPS, lasts_s, alone)
            os.kill(learner.pid, signal.SIGCONT)
            desk.paced(_BESIDE_RPS, lasts_s, beside)
    finally:
        learner.kill()
        learner.join()
    return alone, beside


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of each rate, and of each turn (%(default)s)"
    )
    seconds = parser.parse_args().seconds
    desk = Desk()
    for _ in range(200):
        desk.decide(None)
    print(f"{_ENDPOINTS} endpoints, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for rate in RATES:
        times = Times()
        desk.paced(rate, seconds, times)
        print(f"{rate:3.0f} decisions a second: {times.told()}")
    alone, beside = beside_training(desk, seconds)
    print(f"nobody trains: {alone.told()}")
    print(f"somebody trains: {beside.told()}")
    for name in ("wall", "cpu"):
        ratios = [
            np.percentile(getattr(beside, name), at) / np.percentile(getattr(alone, name), at)
            for at in (50, 99)
        ]
        print(f"{name} while training, to without: p50 {ratios[0]:.2f}, p99 {ratios[1]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
