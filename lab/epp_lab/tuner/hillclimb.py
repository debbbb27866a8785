"""`epp tune --search hillclimb`: the published online search moves the weights of a picker that serves.

`EsPaper` is that search to the letter, faults included. (1+1)-ES on the logarithm of the weights with
Rechenberg's 1/5 rule, source [G]. What is wrong with it, and is kept: samples count at completion, whichever
candidate dispatched them; windows of 128 hop by 32, so three quarters of a window were seen before; the
incumbent is never measured again; the score is negative, so ``score > best * (1 + 0.005)`` accepts what is up
to 0.5 % worse; failed requests vanish; sigma has no ceiling. `epp_lab.tuner.search` has none of this.

`Hillclimb` drives it from flight records. It shares the weights file, its lock and the operators' requests
with `epp_lab.tuner.tuner`; its memory is a file of its own, ``weights.hillclimb.msgpack``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003  # msgspec reads annotations at run time
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec

from epp.config.plan import Plan, render_plan
from epp.errors import ConfigError
from epp.keyed_uniform import keyed_uniform
from epp.records.weight_files import load_memory, values
from epp_lab.sidecar.feed import FeedState  # noqa: TC001
from epp_lab.sidecar.process import Files, Writes, lost, running
from epp_lab.tuner.samples import SampleFeed
from epp_lab.tuner.state import OperatorRequest  # noqa: TC001
from epp_lab.tuner.tuner import SAVE_S, read_requests, undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from epp.clock import Clock
    from epp.records.weight_files import WeightsPaths
    from epp_lab.tuner.setup import Setup

START: Mapping[str, float] = {"rtt_weight": 0.5, "queue_weight": 0.1}
BOX: Mapping[str, tuple[float, float]] = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
_HOP = 32
_TOLERANCE = 0.005
_FACTOR = 0.817
_REMEMBERED = 8
_MAX_STEPS = 10_000
_SIGMA, _SIGMA_MIN = 0.5, 0.05
_TINY = 2.0**-54
_LARGEST = 100.0
#: An outcome is waited for so long.
_GIVE_UP_S = 600.0


class EsPaper(msgspec.Struct):
    """Tell it the TTFT of each successful streaming request as it completes; live weights are `weights`.

    Attributes:
        seed: of its draws.
        window: samples that a score is made of; the paper's 128, 64 in its authors' later text.
        start: first weights; their first window is the baseline.
        box: range of each.
        weights: on trial now.
        best: incumbent.
        best_score: what the incumbent scored, NaN before the first window.
        sigma: width of a step.
        steps: candidates scored.
        samples: told.
        stopped: the search is over, and ``weights`` are the best.
        newest: the window.
        hopped: samples since the last score.
        accepted: whether each of the last steps was accepted.
    """

    seed: int
    window: int = 128
    start: Mapping[str, float] = msgspec.field(default_factory=lambda: START)
    box: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=lambda: BOX)
    weights: dict[str, float] = {}
    best: dict[str, float] = {}
    best_score: float = math.nan
    sigma: float = _SIGMA
    steps: int = 0
    samples: int = 0
    stopped: bool = False
    newest: list[float] = []
    hopped: int = 0
    accepted: list[bool] = []

    def __post_init__(self) -> None:
        """Begin with the first weights."""
        self.weights = self.weights or dict(self.start)
        self.best = self.best or dict(self.start)

    def tell(self, ttft_ms: float) -> bool:
        """Take one completed request; whether the live weights changed."""
        if self.stopped:
            return False
        self.samples += 1
        self.hopped += 1
        self.newest = [*self.newest[1 - self.window :], ttft_ms]
        if self.hopped < _HOP or len(self.newest) < self.window:
            return False
        self.hopped, before = 0, self.weights
        # Negative p95 of the window in seconds, by the rounded index that its authors use.
        self._score(-sorted(self.newest)[round(0.95 * (self.window - 1))] / 1000.0)
        return self.weights != before

    def fit(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        """Keep what is searched, and was found, within bounds."""

        def clip(name: str, value: float) -> float:
            low, high = bounds[name]
            return min(max(value, low), high)

        self.box = {name: (clip(name, low), clip(name, high)) for name, (low, high) in BOX.items()}
        self.weights, self.best = (
            {name: clip(name, value) for name, value in found.items()} for found in (self.weights, self.best)
        )

    def _score(self, score: float) -> None:
        first = math.isnan(self.best_score)
        accepted = first or score > self.best_score * (1.0 + _TOLERANCE)
        if accepted:
            self.best_score, self.best = score, dict(self.weights)
        if not first:
            self.accepted = [*self.accepted[1 - _REMEMBERED :], accepted]
            self.steps += 1
            rate = sum(self.accepted) / _REMEMBERED
            if len(self.accepted) == _REMEMBERED:
                self.sigma *= _FACTOR if rate < 0.2 else 1.0 / _FACTOR
        if self.sigma < _SIGMA_MIN or self.steps >= _MAX_STEPS:
            self.stopped = True
            self.weights = dict(self.best)
        else:
            self.weights = {name: self._moved(name, value) for name, value in self.best.items()}

    def _moved(self, name: str, value: float) -> float:
        draw = keyed_uniform(self.seed, str(self.steps + 1), f"es {name}")
        z, (low, high) = NormalDist().inv_cdf(draw + _TINY), self.box[name]
        moved = value * math.exp(min(self.sigma * z, _LARGEST))  # beyond it only the box counts
        return min(max(moved, low), high)


class Memory(msgspec.Struct):
    """All that a serving search persists.

    Attributes:
        policy: whose weights they are.
        search: where it stands.
        feed: where the records were read to; None before it ran.
        frozen: why nothing is searched, in an operator's words; None while it is.
        serial: counts what was published.
        requests_done: ids of the operators' requests on file that were done.
    """

    policy: str
    search: EsPaper
    feed: FeedState | None = None
    frozen: str | None = None
    serial: int = 0
    requests_done: list[str] = []

    @property
    def served(self) -> dict[str, float]:
        """Return the weights that pickers are to serve by: the best ones while it is frozen."""
        return self.search.weights if self.frozen is None else self.search.best


def read_memory(paths: WeightsPaths) -> Memory | None:
    """Read the memory; None when there is none.

    Raises:
        EppError: it is there and cannot be used.
    """
    return load_memory(paths.hillclimb, msgspec.msgpack.Decoder(Memory).decode)


class Hillclimb:
    """Drives the search beside a picker; whoever makes one holds the lock of the weights file.

    Args:
        setup: policy, bounds and files.
        clock: the time.
        report: takes sentences for the log.
        seed: of a search that begins.

    Raises:
        ConfigError: the policy has not the weights that the paper searched.
        EppError: the memory is there and cannot be used.
    """

    def __init__(self, setup: Setup, *, clock: Clock, report: Callable[[str], None], seed: int = 0) -> None:
        if not set(BOX) <= set(setup.rules.bounds):
            problem = f"{setup.policy!r} has no {' and '.join(BOX)}, which hillclimb searches"
            raise ConfigError("command line", "--search", problem, "policy gorgo-hillclimb or gorgo")
        self.setup, self._clock, self._report = setup, clock, report
        self._writes = Writes(report, Files())
        memory = read_memory(setup.paths)
        if memory is None or memory.policy != setup.policy:
            on_file = [request.id for request in read_requests(setup.paths)]  # asked of somebody who is gone
            memory = Memory(setup.policy, EsPaper(seed), requests_done=on_file)
        self.memory = memory
        memory.search.fit(setup.rules.bounds)
        self.feed = SampleFeed(setup.records, policy=setup.policy, report=report, state=memory.feed)
        memory.feed = self.feed.state
        self._rendered: bytes | None = None
        self._plan: Plan | None = None
        self._saved_s = clock.mono_s()

    def tick(self) -> None:
        """Do one round; call it every second or so."""
        before = self.memory.served
        asked = self.obey()
        for sample in self.feed.new(self._clock.wall_s(), give_up_s=_GIVE_UP_S):
            if self.memory.frozen is None and sample.answered:  # failed requests vanish, as published
                self.memory.search.tell(sample.ttft_ms)
        due = asked or self.memory.served != before or self._clock.mono_s() - self._saved_s >= SAVE_S
        if due or self._rendered is None or lost(self.setup.paths.weights, self._rendered):
            self.save()

    def close(self) -> None:
        """Write the memory."""
        self.save()

    def drop(self) -> None:
        """Write nothing."""

    def obey(self) -> bool:
        """Do the operators' requests on file that were not done; whether there were any."""
        new, self.memory.requests_done = undone(self.setup.paths, self.memory.requests_done)
        for request in new:
            self.handle(request)
        return bool(new)

    def handle(self, request: OperatorRequest) -> None:
        """Freeze or thaw: windows that another incumbent served are not scored."""
        search = self.memory.search
        if request.what == "rollback":
            self._report("hillclimb keeps no earlier weights to go back to: pin what you want")
            return
        self.memory.frozen = (request.reason or "an operator asked") if request.what == "freeze" else None
        search.newest, search.hopped = [], 0
        self._report(f"{request.what}: {values(self.memory.served, {})} in force")

    def save(self) -> bool:
        """Persist, then publish; whether all of it is on disk."""
        self._saved_s, paths, memory = self._clock.mono_s(), self.setup.paths, self.memory
        if lost(paths.weights, self._rendered) or self._plan is None or self._plan.weights != memory.served:
            memory.serial += 1
            self._plan = Plan(
                weights=dict(memory.served),
                policy=memory.policy,
                serial=memory.serial,
                written_wall_s=self._clock.wall_s(),
                reason=f"hillclimb, step {memory.search.steps}",
            )
        content = render_plan(self._plan)
        if not self._writes.replace("the search's memory", paths.hillclimb, msgspec.msgpack.encode(memory)):
            return False
        if content != self._rendered:
            if not self._writes.replace("the weights file", paths.weights, content):
                return False
            self._rendered = content
        return True


def status_lines(paths: WeightsPaths, now_wall_s: float) -> Iterator[str]:
    """Write where the search stands, for people.

    Raises:
        EppError: its memory is there and cannot be used.
    """
    memory, runs = read_memory(paths), running(paths.lock, paths.hillclimb, now_wall_s)
    if memory is None:
        yield f"hillclimb: {runs}; no memory beside {paths.weights}: it has not run on this file"
        return
    search = memory.search
    where = "searching" if memory.frozen is None else f"frozen: {memory.frozen}"
    where = "over" if search.stopped else where
    yield f"hillclimb: {runs}; policy {memory.policy}; {where}"
    yield f"in force: {values(memory.served, {})}"
    scored = "not scored yet" if math.isnan(search.best_score) else f"TTFT p95 {-search.best_score:.3f} s"
    yield f"best: {values(search.best, {})}; {scored} when it was measured"
    sigma = f"sigma {search.sigma:.3g}, ends below {_SIGMA_MIN}"
    yield f"steps: {search.steps} from {search.samples:,} requests; {sigma}"
