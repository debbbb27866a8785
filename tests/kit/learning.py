"""A made-up deployment whose latencies follow a formula, as logged choices and as files of records."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.apis.usage import Usage
from epp.config.schema import Config
from epp.config.strict import convert
from epp.records.files import file_name
from epp.records.model_files import parse_reward_model
from epp.schedule.decision import Outcome, outcome_record, to_record
from epp_lab.reward_model.loop import Loop, Setup
from epp_lab.reward_model.samples import Choice, Logged, Sample
from epp_lab.reward_model.settings import LearnerSettings
from epp_lab.sidecar.process import ModelPaths, process_lock
from tests.kit.clock import ManualClock
from tests.kit.records import WALL_S, ask_of, picker_of
from tests.kit.tunework import FakeFiles

if TYPE_CHECKING:
    from pathlib import Path

    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision


FEATURES = ("running_requests", "uncached_tokens", "rtt_ms")
#: Milliseconds by engine class: a prefill token there.
SPEED = {"fast": 0.1, "slow": 0.4}


def settings_of(**sections: dict[str, Any]) -> LearnerSettings:
    """Small numbers: rounds take milliseconds."""
    small: dict[str, dict[str, Any]] = {
        "network": {"features": FEATURES, "hidden": (16, 16), "epochs": 30, "batch": 32, "learning_rate": 0.01,
                    "min_class_rows": 5},
        "data": {"first": 300, "every": 100, "recent": 300, "replay": 100},
        "gate": {"held_out": 100, "min_effective": 10.0},
    }  # fmt: skip
    plain: dict[str, Any] = {}
    for name in {**small, **sections}:
        given = sections.get(name, {})
        plain[name] = {**small.get(name, {}), **given} if isinstance(given, dict) else given
    return convert(plain, LearnerSettings, "test")


def ttft_of(row: Any, engine_class: str) -> float:
    """The formula."""
    return float(20.0 + row[2] + 30.0 * row[0] + SPEED[engine_class] * row[1])


class Traffic:
    """Logged choices of a policy that takes the fewest running requests, and sometimes anything.

    Args:
        seed: of everything.
        explore: chance of anything.
        noise: spread of the latencies' logarithm.
        candidates: endpoints.
    """

    def __init__(
        self, seed: int = 0, *, explore: float = 0.5, noise: float = 0.1, candidates: int = 4
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._explore, self._noise, self._candidates = explore, noise, candidates
        self.factor = 1.0
        self._at_s = WALL_S

    def one(self) -> Logged:
        """The next request."""
        random, count = self._random, self._candidates
        rows = np.stack(
            [
                random.integers(0, 10, count).astype(float),
                random.uniform(100.0, 4000.0, count),
                random.uniform(1.0, 50.0, count),
            ],
            axis=1,
        )
        classes = tuple("fast" if place < count // 2 else "slow" for place in range(count))
        chances = np.full(count, self._explore / count)
        chances[int(rows[:, 0].argmin())] += 1.0 - self._explore
        chosen = int(random.choice(count, p=chances))
        ttft_ms = self.factor * ttft_of(rows[chosen], classes[chosen])
        ttft_ms *= float(np.exp(self._noise * random.standard_normal()))
        self._at_s += 0.1
        sample = Sample(
            at_wall_s=self._at_s,
            row=rows[chosen].copy(),
            engine_class=classes[chosen],
            ttft_ms=ttft_ms,
            itl_ms=10.0,
            output_tokens=100.0,
        )
        least = np.zeros(count)
        least[int(rows[:, 0].argmin())] = 1.0
        names = tuple(f"e{place}" for place in range(count))
        choice = Choice(names, rows, classes, chances, least, chosen, output_tokens=100.0)
        return Logged(sample, choice, served_pick=True)

    def many(self, count: int) -> list[Logged]:
        """The next requests."""
        return [self.one() for _ in range(count)]


class Recorded:
    """A folder of records that grows.

    Args:
        folder: where; is made.
        policy: that decides.
        begin_s: Unix time of the first request.
    """

    def __init__(self, folder: Path, policy: str = "least-request", begin_s: float = WALL_S) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / file_name(begin_s, compressed=False)
        self.file.touch()
        self._scheduler = picker_of(policy, tolerance=0.0)
        self._random = np.random.default_rng(1)
        self.now_s = 0.0
        self._begin_s = begin_s
        self._asked = 0

    def decision(self) -> Decision:
        """A decision, its lease held."""
        self._asked += 1
        self.now_s += 0.05
        ask = ask_of(int(self._random.integers(50)), blocks=int(self._random.integers(4, 60)))
        return self._scheduler.decide(ask, self.now_s, self._begin_s + self.now_s)

    def outcome(self, decision: Decision, **fields: Any) -> Outcome:
        """Its end: TTFT follows from what it had to prefill."""
        snapshot, row = decision.snapshot, decision.chosen
        ttft_ms = (
            20.0 + 0.1 * float(snapshot.uncached_tokens[row]) + 30.0 * float(snapshot.running_requests[row])
        )
        told: dict[str, Any] = {
            "id": decision.id,
            "endpoint": decision.endpoint,
            "cause": "completed",
            "status": 200,
            "ttft_ms": ttft_ms,
            "e2e_ms": ttft_ms + 500.0,
            "usage": Usage(prompt_tokens=10, completion_tokens=50, cached_tokens=0),
            "itl_ms": 10.0,
            **fields,
        }
        return Outcome(**told)

    def write(self, count: int) -> None:
        """So many requests, decisions a little ahead of their outcomes."""
        open_: list[Decision] = []
        lines: list[dict[str, Any]] = []
        for _ in range(count):
            decision = self.decision()
            lines.append(to_record(decision))
            open_.append(decision)
            if len(open_) > 5:
                lines.append(self._end(open_.pop(0)))
        lines += [self._end(decision) for decision in open_]
        self.append("".join(json.dumps(line) + "\n" for line in lines).encode())

    def _end(self, decision: Decision) -> dict[str, Any]:
        self._scheduler.end(decision.id, "completed", self.now_s)
        return outcome_record(self.outcome(decision), self._begin_s + self.now_s)

    def append(self, content: bytes) -> None:
        """Bytes as they are."""
        with self.file.open("ab") as file:
            file.write(content)


def quick_settings() -> LearnerSettings:
    """Rounds of a few milliseconds."""
    return settings_of(
        network={"epochs": 4, "hidden": (8,)},
        data={"first": 60, "every": 40, "recent": 100, "replay": 40},
        gate={"held_out": 20, "min_effective": 1.0, "z": 1e9, "worse": 10.0},
    )


@dataclass
class LearnWorld:
    """Records, a learner, and what it writes."""

    folder: Path
    settings: LearnerSettings = field(default_factory=quick_settings)
    disk: FakeFiles = field(default_factory=FakeFiles)
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = ModelPaths(self.folder / "shared" / "reward.json")
        self.recorded = Recorded(self.folder / "records")
        self.loop: Loop | None = None
        self.lock = ExitStack()

    @property
    def setup(self) -> Setup:
        """What a learner is given."""
        return Setup(self.settings, self.paths, self.folder / "records", Config(), None)

    def start(self) -> Loop:
        """A learner begins."""
        self.lock.enter_context(process_lock(self.paths.lock, "learner"))
        self.loop = Loop(self.setup, files=self.disk, clock=self.clock, report=self.told.append)
        self.loop.open()
        return self.loop

    def run(self, requests: int, step: int = 20) -> None:
        """Requests come and the learner looks after every few of them."""
        assert self.loop is not None
        for _ in range(0, requests, step):
            self.recorded.write(step)
            self.clock.advance(1.0)
            self.loop.tick()

    def die(self) -> None:
        """The process ends without a word."""
        self.lock.close()  # what a kernel does for it
        self.loop = None
        self.disk.dies_in, self.disk.full = None, False

    def published(self) -> RewardModel | None:
        """What a picker would read now; None for no file."""
        path = self.paths.model
        return parse_reward_model(path.read_bytes(), "reward.json") if path.exists() else None

    def copied(self, folder: Path) -> LearnWorld:
        """The same files for another learner; records go on in a file of their own."""
        shutil.copytree(self.folder, folder)
        return LearnWorld(folder, self.settings, clock=ManualClock(self.clock.mono_s(), self.clock.wall_s()))
