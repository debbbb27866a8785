"""A learner over a folder of records that grows, in virtual time, on a disk that can fail."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epp.learn.reward_model.loop import Loop
from epp.learn.sidecar.files import ModelPaths
from epp.learn.sidecar.process import process_lock
from epp.records.model_files import parse_reward_model
from tests.kit.clock import ManualClock
from tests.kit.learning import Recorded, settings_of
from tests.kit.tunework import FakeFiles

if TYPE_CHECKING:
    from pathlib import Path

    from epp.learn.reward_model.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel


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

    def start(self) -> Loop:
        """A learner begins."""
        self.lock.enter_context(process_lock(self.paths.lock, "learner"))
        self.loop = Loop(
            settings=self.settings,
            paths=self.paths,
            files=self.disk,
            records=self.folder / "records",
            clock=self.clock,
            report=self.told.append,
        )
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
