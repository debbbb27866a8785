"""The demo's fleet of different models behind one name: replicas, picker, Envoy, ready or an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from epp.config.pool import EndpointSpec, dump_pool
from epp.demo.serving import LISTEN, Serving
from epp.sim.a100 import A100_MODELS

if TYPE_CHECKING:
    from pathlib import Path

#: What clients call all of them.
MODEL = "chat"
_START_S = 60.0


class LaarFleet(Serving):
    """Everything that serves, as an async context manager.

    Args:
        folder: configuration, logs and records of this fleet.
        policy: the picker's policy.
        shared: folder with ``truth.yaml`` and ``capability.yaml``.
    """

    def __init__(self, folder: Path, policy: str, shared: Path) -> None:
        super().__init__(folder, _START_S)
        self._policy, self._shared = policy, shared.absolute()

    async def _start(self) -> None:
        arguments = ["--accuracy", str(self._shared / "truth.yaml")]
        for cls in A100_MODELS:
            arguments += ["--replica", f"name={cls.name},port=0,class={cls.name},model={cls.name}"]
        addresses = await self._replicas(arguments, len(A100_MODELS))
        pool = [
            EndpointSpec(address=addresses[name], engine_class=name, models={MODEL: name})
            for name in (cls.name for cls in A100_MODELS)
        ]
        (self.folder / "endpoints.yaml").write_bytes(dump_pool(pool))
        listening = await self._picker(self._config(), len(pool))
        await self._envoy(pool, listening, served_model_header=True)

    def _config(self) -> str:
        return (
            "# Written by `epp laar demo`; works with `epp serve --config`, too.\n"
            f"{LISTEN}"
            "pool: {file: endpoints.yaml, warmup_s: 0}\n"
            f"policy: {{name: {self._policy}}}\n"
            f"capability: {{file: {json.dumps(str(self._shared / 'capability.yaml'))}, tell_model: true}}\n"
            "records: {folder: records}\n"
            "probe: {interval_s: 0.5}\n"
            "drain_s: 1\n"
        )
