"""A small deployment whose picker runs `lodestar`, with the learner that trains and tries it, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from epp.config.reward_model import parse_reward_model
from epp.learn.reward_model.challenger import POLICY, STARTING, WEIGHT
from epp.learn.reward_model.loop import Loop
from epp.learn.reward_model.trial import Contender
from epp.learn.sidecar.paths import ModelPaths
from epp.learn.tuner.state import Rules
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.picker import Picker, PickerSettings
from epp.schedule.weights import WeightBook
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from tests.kit.learning import settings_of
from tests.kit.tunework import World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.reward_model.settings import LearnerSettings
    from epp.learn.tuner.tuner import Tuner


def faster_by_the_model(weights: Mapping[str, float]) -> float:
    """Mean TTFT by who decides."""
    return 60.0 if weights[WEIGHT] >= 0.5 else 200.0


def quick_learner() -> LearnerSettings:
    """Tiny rounds whose gate refuses nothing: the trial is what is tested."""
    return settings_of(
        network={"epochs": 2, "hidden": (4,)},
        data={"first": 120, "every": 400, "recent": 300, "replay": 50},
        gate={"held_out": 40, "on": False},
        monitors={"frozen": 10},
    )


@dataclass
class LearnedLife(World):
    """A world in which the model, and not weights, is learned."""

    learner: LearnerSettings = field(default_factory=quick_learner)

    def __post_init__(self) -> None:
        self.models = ModelPaths(self.folder / "reward.json")
        self.loop: Loop | None = None
        super().__post_init__()

    def start(self) -> Tuner:
        """A learner process begins, with its trial."""
        loop = Loop(
            settings=self.learner,
            paths=self.models,
            files=self.disk,
            records=self.records,
            clock=self.clock,
            tell=self.told.append,
        )
        loop.open()
        self.tuner = loop.trial = self.tuner_of(
            Contender(lambda: loop.incumbent, self.clock, 600.0),
            Rules(self.settings, {WEIGHT: (0.0, 1.0)}),
            policy=POLICY,
            starting=STARTING,
        )
        loop.trial.open()
        self.loop = loop
        return loop.trial

    def second(self, *, traffic: bool = True) -> None:
        """One second of life: the loop drives the trial."""
        tuner, self.tuner = self.tuner, None
        super().second(traffic=traffic)
        self.tuner = tuner
        if self.loop is not None and self._seconds % self.every_s == 0:
            self.loop.tick()

    def look(self) -> None:
        """The picker looks at its files, the model among them."""
        super().look()
        text = self.models.model.read_bytes() if self.models.model.exists() else None
        if text == self._texts.get("model"):
            return
        self._texts["model"] = text
        model = None if text is None else parse_reward_model(text, "reward.json")
        self.picker.policy = replace(self._policy, model=model)

    def published_version(self) -> str:
        """Version of the model that the picker has."""
        policy = self.picker.policy
        assert isinstance(policy, Lodestar)
        assert policy.model is not None
        return policy.model.version

    def _book(self) -> WeightBook:
        specs = Lodestar.weight_specs
        return WeightBook(policy=POLICY, specs=specs, configured={}, bounds={}, source="epp.yaml")

    def _picker(self) -> Picker:
        ids = count()
        self._policy = Lodestar(min_samples=0)
        settings: dict[str, Any] = {"warmup_s": 0.0}
        picker = Picker(
            fleet=Fleet(PrefixIndex()),
            policy=self._policy,
            balance=create("least-request"),
            weights=self.book,
            settings=PickerSettings(**settings),
            new_id=lambda: f"d{self.wall_s:.0f}-{next(ids)}",
        )
        picker.set_pool([Endpoint(f"10.0.0.{n}:8000", region=f"r{n}") for n in range(2)], 0.0)
        return picker
