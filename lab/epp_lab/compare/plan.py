"""What is run: cells, which are loads at a pace, and how a cell's requests come about.

Values are picklable: they travel to worker processes.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp_lab.compare.files import load_trace
from epp_lab.compare.trace import TraceRequest, select
from epp_lab.sim.scenario import WindowOptions
from epp_lab.workloads.registry import workload_named
from epp_lab.workloads.tenants import Tenancy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: Tuning draws loads that are never judged on: their seeds lie far from any that is.
TUNING_SEED = 1_000_000
#: Part of a recorded trace that is tuned on (source [T]: first 20 of 59 minutes).
TUNING_SHARE = 1 / 3
WARMUP_S = 300.0
#: So many paces a knee is looked for among.
PACES = 6
_WARMUP_SHARE = 1 / 6


def number_from(least: float, kind: type[int | float] = int) -> Callable[[str], float]:
    """Return a parser of a command's numbers, from ``least`` on."""

    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < inf:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, not {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is no number
    return parse


def counts(text: str) -> list[int]:
    """Read a command's numbers by commas, each 1 or more."""
    return [int(number_from(1)(part)) for part in text.split(",")]


def paces(text: str) -> list[float]:
    """Read ``LEAST..MOST`` as `PACES` factors on a load's pace, evenly from the least to the most."""
    least, most = map(number_from(1e-6, float), text.split(".."))
    return [round(least + (most - least) * step / (PACES - 1), 6) for step in range(PACES)]


def listed(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of a command's names by commas, each one of some.

    A name may stand in double quotes, for the commas in it, or be told by its number from 1 on. What is a
    name is never read as a number.
    """
    by_number = {str(number): name for number, name in enumerate(known, 1)}

    def named(word: str) -> str:
        if (name := word if word in known else by_number.get(word)) is None:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return name

    return lambda text: [named(word) for word in next(csv.reader([text])) or [""]]


def add_window_arguments(add: Callable[..., object]) -> None:
    """Declare which stretch of a load is taken, and how a trace's times are read."""
    seconds = number_from(0, float)
    add("--from", dest="from_s", type=seconds, default=0.0, metavar="S", help="start so far into the load")
    add("--seconds", type=seconds, default=0.0, help="only so much of the load, in its own time")
    add(
        "--tick-ms",
        type=seconds,
        metavar="MS",
        help="of Mooncake rows: times are multiples of this, arrivals lie between; 0 for exact times "
        "(default: detected)",
    )


def add_load_arguments(add: Callable[..., object], max_prompt_tokens: int) -> None:
    """Declare how a load is taken: its pace, which stretch, up to which prompts unless told otherwise."""
    add(
        "--load",
        type=number_from(1e-6, float),
        default=1.0,
        help="factor on the load's own pace (%(default)s)",
    )
    add_window_arguments(add)
    add(
        "--max-prompt-tokens",
        type=number_from(0),
        default=max_prompt_tokens,
        help="drop a trace's longer prompts; 0 for none (%(default)s)",
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Where requests come from.

    Attributes:
        workload: name of a generated workload, ``""`` for a trace.
        trace: path of a trace file, ``""`` for a workload.
        max_prompt_tokens: longer prompts of a trace are dropped.
        tick_ms: what the times of a trace are multiples of, where they are ticks; None to detect it.
        from_s: only what starts from then on, in the source's own time.
        until_s: only so long a stretch from there; 0 for all.
        part: of that stretch of a trace: ``all``, ``tune`` or ``judge`` (disjoint).
        rate: of a workload: so many times as many users, each as before.
        tenancy: who shares it.
    """

    workload: str = ""
    trace: str = ""
    max_prompt_tokens: int = 24_000
    tick_ms: float | None = None
    from_s: float = 0.0
    until_s: float = 0.0
    part: str = "all"
    rate: float = 1.0
    tenancy: Tenancy = field(default_factory=Tenancy)

    def requests(self, seed: int) -> tuple[TraceRequest, ...]:
        """Return the load for a seed, in time order; the last ones are remembered, for the next policy.

        Raises:
            EppError: unknown workload, unreadable trace, or nothing left of it.
        """
        return _load(self, seed)


@lru_cache(maxsize=3)
def _load(source: Source, seed: int) -> tuple[TraceRequest, ...]:
    if source.workload:
        requests = workload_named(source.workload).make(seed, source.rate)
        until_s = source.from_s + (source.until_s or inf)
        requests = select(requests, from_ms=source.from_s * 1000.0, until_ms=until_s * 1000.0)
    else:
        requests = load_trace(
            source.trace,
            seed=seed,
            tick_ms=source.tick_ms,
            from_s=source.from_s,
            seconds=source.until_s,
            max_prompt_tokens=source.max_prompt_tokens or None,
        )
        if requests and source.part != "all":
            requests = part_of(requests, source.part)
    if not requests:
        raise EppError(f"{source.workload or source.trace}: no request is left to replay")
    return requests if source.tenancy == Tenancy() else source.tenancy.apply(requests)


def part_of(requests: tuple[TraceRequest, ...], part: str) -> tuple[TraceRequest, ...]:
    """Return the part of a trace to tune on or to judge on.

    An open-loop trace is cut in time. Of closed-loop sessions whole users fall to one part or the other,
    since a session cut in two would be tuned and judged on the same content.
    """
    tune = part == "tune"
    cut_ms = requests[-1].at_ms * TUNING_SHARE
    if any(r.after is not None for r in requests):
        chosen = [(keyed_uniform(0, r.user, "part") < TUNING_SHARE) == tune for r in requests]
        cut_ms = 0.0
    else:
        chosen = [(r.at_ms < cut_ms) == tune for r in requests]
    position: dict[int, int] = {}
    kept: list[TraceRequest] = []
    for index, (request, wanted) in enumerate(zip(requests, chosen, strict=True)):
        if wanted:
            position[index] = len(kept)
            after = None if request.after is None else position[request.after]
            kept.append(replace(request, at_ms=request.at_ms - (0.0 if tune else cut_ms), after=after))
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class PlanCell:
    """A load at a pace: one section of a report.

    Attributes:
        name: heading.
        source: its requests.
        load: multiplies the source's own pace; send times are divided by it.
        time_scale: of the source at its own pace.
        max_in_flight: the client's limit, None for none.
        warmup_s: what is dropped at the start; None for `WARMUP_S`, or a sixth of a run that is shorter.
        tuning: what policies are tuned on.
        reports: what the picker hears; how it is sent is set by the cell.
    """

    name: str
    source: Source
    load: float = 1.0
    time_scale: float = 1.0
    max_in_flight: int | None = None
    warmup_s: float | None = None
    tuning: Source | None = None
    reports: WindowOptions = field(default_factory=WindowOptions)

    @property
    def pace(self) -> float:
        """Factor on send times and think times."""
        return self.time_scale / self.load

    def warmup(self, requests: tuple[TraceRequest, ...]) -> float:
        """Return the seconds dropped at the start.

        Raises:
            EppError: nothing would be left to judge.
        """
        last_s = requests[-1].at_ms * self.pace / 1000.0
        if self.warmup_s is None:
            return min(WARMUP_S, _WARMUP_SHARE * last_s)
        if self.warmup_s > last_s:
            raise EppError(
                f"{self.name}: a warm-up of {self.warmup_s:g} s leaves nothing to judge of {last_s:.1f} s"
            )
        return self.warmup_s
