"""The demo's pool of two kinds of engine: replicas, picker, learner beside it, Envoy; ready or an error."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from epp.config.pool import EndpointSpec, dump_pool
from epp.demo.child import Child
from epp.demo.serving import LISTEN, Serving
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from pathlib import Path

    from epp.learner.settings import LearnerKeys

MODEL = "demo-model"
MODEL_FILE, SETTINGS_FILE = "reward.json", "learner.yaml"
_START_S = 90.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Replicas of one engine class."""

    engine_class: str
    count: int


#: Some remember prefixes, the slower others do not: the published mixed pool in small.
KINDS = (Kind("a30", 2), Kind("v100", 2))


class LodestarFleet(Serving):
    """Everything that serves, as an async context manager.

    Args:
        folder: configuration, logs, records and models of this fleet.
        policy: the picker's policy; a learner runs beside one that learns.
        settings: the learner's.
        kinds: the replicas.
    """

    def __init__(
        self, folder: Path, policy: str, settings: LearnerKeys, kinds: tuple[Kind, ...] = KINDS
    ) -> None:
        super().__init__(folder, _START_S)
        self._policy, self._settings = policy, settings
        self._kinds = {
            f"{kind.engine_class}-{number}": kind.engine_class
            for kind in kinds
            for number in range(kind.count)
        }

    @property
    def learns(self) -> bool:
        """Whether a learner runs."""
        return self._policy == Lodestar.name

    async def _start(self) -> None:
        arguments = ["--model", MODEL]
        for name, engine_class in self._kinds.items():
            arguments += ["--replica", f"name={name},port=0,class={engine_class}"]
        addresses = await self._replicas(arguments, len(self._kinds))
        pool = [EndpointSpec(address=addresses[name], engine_class=cls) for name, cls in self._kinds.items()]
        (self.folder / "endpoints.yaml").write_bytes(dump_pool(pool))
        listening = await self._picker(self._config(), len(pool))
        if self.learns:
            await self._start_learner()
        await self._envoy(pool, listening)

    def _config(self) -> str:
        policy = f"{{name: {self._policy}}}"
        if self.learns:
            params = f"{{min_samples: {self._settings.data.first}}}"
            policy = f"{{name: {self._policy}, params: {params}, model_file: {MODEL_FILE}}}"
        return (
            "# Written by the Lodestar demo; works with `epp serve --config`, too.\n"
            f"{LISTEN}"
            "pool: {file: endpoints.yaml, warmup_s: 0}\n"
            f"policy: {policy}\n"
            "records: {folder: records}\n"
            "probe: {interval_s: 0.5}\n"
            "scrape: {interval_s: 0.1}\n"
            "drain_s: 1\n"
        )

    async def _start_learner(self) -> None:
        """The second process; it has begun once it has told of itself."""
        (self.folder / SETTINGS_FILE).write_bytes(msgspec.yaml.encode(self._settings))
        arguments = ["learn", "--config", str(self.folder / "epp.yaml")]
        arguments += ["--settings", str(self.folder / SETTINGS_FILE)]
        child = await self._exit.enter_async_context(Child("learner", arguments, self.folder))
        while not list(self.folder.glob("*.status.json")):
            child.check()
            await asyncio.sleep(0.1)
