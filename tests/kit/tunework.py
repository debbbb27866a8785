"""A small deployment for the tuner: a picker that reads its weights file and writes records, and a tuner on both.

Time is virtual. How long a request takes depends on the weights that chose, by a function that the test gives.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from epp.apis.usage import Usage
from epp.config.bounds import tuner_bounds
from epp.config.schema import Config
from epp.errors import ConfigError
from epp.keyed_uniform import keyed_uniform
from epp.policies.gorgo import Gorgo
from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.records.files import file_name
from epp.records.weight_files import WeightsPaths
from epp.schedule.decision import SCHEMA_VERSION, Outcome, outcome_record, to_record
from epp.schedule.scheduler import Scheduler, SchedulerSettings
from epp.schedule.weights import WeightBook
from epp.signals.datastore import Datastore
from epp.types import Endpoint
from epp_lab.sidecar.process import Files, process_lock
from epp_lab.tuner.settings import Evidence, Goal, Stages, TunerSettings
from epp_lab.tuner.setup import Setup
from epp_lab.tuner.state import Rules
from epp_lab.tuner.tuner import Found, Tuner
from tests.kit.clock import ManualClock
from tests.kit.requests import asked, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp_lab.tuner.state import TunerState

START_WALL_S = 1_700_000_000.0
REQUESTS_PER_S = 5
STARTING = {"rtt_weight": 0.276, "queue_weight": 0.5, "prefill_weight": 1.0}
GOOD = {"rtt_weight": 1.0, "queue_weight": 0.5, "prefill_weight": 1.0}
#: Short stages, so that a life fits into minutes.
QUICK = TunerSettings(
    goal=Goal(quantile=0.7, slow_margin=0.3, e2e_margin=0.2, error_margin=0.2, concentration_margin=0.45),
    evidence=Evidence(min_pairs=8, max_pairs=60, min_block_requests=5),
    stages=Stages(
        baseline_requests=200,
        baseline_s=30.0,
        screen_share=0.3,
        ramp_shares=(0.5,),
        stage_requests=40,
        stage_s=30.0,
        block_s=10.0,
        max_block_s=10.0,
        probation_pairs=8,
        probation_every=1,
        lease_s=60.0,
        late_s=5.0,
    ),
)


class CrashError(Exception):
    """The process died here."""


@dataclass
class FakeFiles(Files):
    """A real folder that can be full, or the last thing that a process sees.

    Attributes:
        full: nothing can be written.
        dies_in: writes until the process dies, None for never; `after` says on which side of the write.
    """

    full: bool = False
    dies_in: int | None = None
    after: bool = False

    def replace(self, path: Path, content: bytes) -> None:
        self._write(lambda: Files.replace(self, path, content))

    def remove(self, path: Path) -> None:
        self._write(lambda: Files.remove(self, path))

    def _write(self, write: Callable[[], None]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                if self.after:
                    write()
                raise CrashError
        write()


@dataclass
class FakeRehearsal:
    """Finds what the test says, in order; then nothing. An error is raised at the start."""

    finds: list[dict[str, float] | Found | OSError | None]
    started: int = 0
    running: bool = False

    def start(self, _state: TunerState, _reason: str) -> None:
        self.started += 1
        if self.finds and isinstance(self.finds[0], OSError):
            raise self.finds.pop(0)  # type: ignore[misc]  # it is one
        self.running = True

    def poll(self) -> Found | None:
        if not self.running:
            return None
        self.running = False
        found = self.finds.pop(0) if self.finds else None
        assert not isinstance(found, OSError)
        return found if isinstance(found, Found) else Found(found, "as the test says")

    def stop(self) -> None:
        self.running = False


def fast_when_near(weights: Mapping[str, float]) -> float:
    """Mean TTFT by weights: lowest at an RTT weight of 1."""
    return 100.0 * (1.0 + 3.0 * abs(weights["rtt_weight"] - 1.0))


@dataclass
class World:
    """Picker, records and tuner over one folder."""

    folder: Path
    finds: list[dict[str, float] | Found | OSError | None] = field(default_factory=list)
    settings: TunerSettings = QUICK
    ttft_ms: Callable[[Mapping[str, float]], float] = fast_when_near
    wall_s: float = START_WALL_S
    _seconds: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock(wall_s=self.wall_s)
        self.disk = FakeFiles()
        self.paths = WeightsPaths(self.folder / "weights.yaml")
        self.overrides = self.folder / "overrides.yaml"
        self.records = self.folder / "records"
        self.records.mkdir(exist_ok=True)
        self.told: list[str] = []
        self.lock = ExitStack()
        self.picker_errors: list[str] = []
        specs = Gorgo.weight_specs
        self.book = WeightBook(policy="gorgo", specs=specs, configured={}, bounds={}, source="epp.yaml")
        ids = count()
        self.scheduler = Scheduler(
            datastore=Datastore(PrefixIndex()),
            policy=Gorgo(),
            balance=create("least-request"),
            weights=self.book,
            settings=SchedulerSettings(warmup_s=0.0),
            new_id=lambda: f"d{self.wall_s:.0f}-{next(ids)}",
        )
        self.scheduler.set_pool([Endpoint(f"10.0.0.{n}:8000", region=f"r{n}") for n in range(2)], 0.0)
        self.file = self.records / file_name(self.wall_s, compressed=False)
        self.arms: dict[str, int] = {}
        self._texts: dict[str, bytes | None] = {}
        self._numbers = count()
        self.tuner: Tuner | None = None

    def again(self, folder: Path, **changes: Any) -> World:
        """Another one that goes on from a copy of this one's files; its tuner was killed."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        world = World(folder, wall_s=self.clock.wall_s(), **changes)
        world.start()
        return world

    @property
    def state(self) -> TunerState:
        assert self.tuner is not None
        return self.tuner.state

    def start(self) -> Tuner:
        """A tuner process begins."""
        self.lock.enter_context(process_lock(self.paths.lock, "tuner"))
        bounds = tuner_bounds("gorgo", self.book.bounds)
        setup = Setup(
            policy="gorgo",
            book=self.book,
            rules=Rules(self.settings, {**bounds, "prefill_weight": (1.0, 1.0)}, STARTING),
            paths=self.paths,
            records=self.records,
            overrides=self.overrides,
            config=Config(),
            config_file=None,
        )
        rehearsal = FakeRehearsal(self.finds)
        self.tuner = Tuner(
            setup, rehearsal=rehearsal, clock=self.clock, report=self.told.append, files=self.disk
        )
        self.tuner.open()
        return self.tuner

    def stop(self) -> None:
        """The process is stopped in order."""
        assert self.tuner is not None
        self.tuner.close()
        self.lock.close()

    def die(self) -> None:
        """The process is gone: its lock goes, nothing else happens."""
        self.lock.close()
        self.tuner = None

    def second(self, *, traffic: bool = True) -> None:
        """One second of life."""
        self.clock.advance(1.0)
        self.look()
        if traffic:
            for _ in range(REQUESTS_PER_S):
                self.request()
        self._seconds += 1
        if self.tuner is not None and self._seconds % 2 == 0:
            self.tuner.tick()

    def run(self, seconds: int, *, traffic: bool = True) -> None:
        for _ in range(seconds):
            self.second(traffic=traffic)

    def until(self, phase: str, seconds: int = 3000) -> None:
        """Live until the tuner is in a phase."""
        for _ in range(seconds):
            self.second()
            if self.state.phase == phase:
                return
            if self.state.phase == "frozen":
                break
        raise AssertionError(f"still in {self.state.phase}: {self.state.reason}")

    def look(self) -> None:
        """The picker looks at its files."""
        for layer, path in (("tuner", self.paths.weights), ("override", self.overrides)):
            text = path.read_bytes() if path.exists() else None
            if text == self._texts.get(layer):
                continue
            self._texts[layer] = text
            try:
                self.book.update(layer, text, path.name)
            except ConfigError as error:
                self.picker_errors.append(str(error))

    def request(self) -> None:
        """One request: decided, recorded, ended."""
        number = next(self._numbers)
        name = f"id{number}"
        prompt = measured(0, 640, [number % 50 + 1, 10_000 + number], 64.0)
        wall_s = self.clock.wall_s() + keyed_uniform(1, name, "at") * 0.9
        ask = asked(model="m", prompt=prompt, session=f"s{number % 97}", body_bytes=2000)
        decision = self.scheduler.decide(ask, self.clock.mono_s(), wall_s)
        self.scheduler.end(decision.id, "completed", self.clock.mono_s())
        arm = decision.arm.split("/")[1] if decision.arm else ""
        self.arms[arm] = self.arms.get(arm, 0) + 1
        ttft_ms = self.ttft_ms(decision.weights) * (0.4 + 1.2 * keyed_uniform(2, name, "ttft"))
        outcome = Outcome(
            id=decision.id,
            endpoint=decision.endpoint,
            cause="completed",
            status=200,
            ttft_ms=ttft_ms,
            e2e_ms=2.0 * ttft_ms,
            usage=Usage(640, 16, 0),
        )
        self.write(to_record(decision), outcome_record(outcome, wall_s + outcome.e2e_ms / 1e3))

    def write(self, *records: dict[str, Any]) -> None:
        """Records as a picker appends them."""
        with self.file.open("ab") as file:
            for record in records:
                file.write(msgspec.json.encode(record) + b"\n")

    def rotate(self) -> None:
        """A new file of records."""
        self.file = self.records / file_name(self.clock.wall_s(), compressed=False)
        self.write({"schema": SCHEMA_VERSION, "kind": "file"})
