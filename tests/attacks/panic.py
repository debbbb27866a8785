"""Requests through a real Envoy to a pool of which nearly all is dead."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from epp.config.pool import EndpointSpec
from tests.kit.picker import Serving
from tests.kit.replicas import quick_config

#: Port of discard, on which nothing listens; all of 127.0.0.0/8 is this machine.
_DEAD_PORT = 9
_CLIENTS = 40


class MostlyDead(Serving):
    """Three replicas that serve, in a pool with many that refuse connections.

    Args:
        folder: holds everything on disk.
        dead: how many refuse.
    """

    def __init__(self, folder: Path, dead: int) -> None:
        probes = {"interval_s": 0.5, "timeout_s": 2.0, "eject_s": 0.5}
        super().__init__(folder, replicas=[quick_config(name) for name in "abc"], probe=probes)
        self._dead = [f"127.0.{1 + number // 250}.{1 + number % 250}:{_DEAD_PORT}" for number in range(dead)]

    def specs(self) -> list[EndpointSpec]:
        """The pool: those that serve in the middle of the others."""
        dead = [EndpointSpec(address=address) for address in self._dead]
        half = len(dead) // 2
        return [*dead[:half], *super().specs(), *dead[half:]]

    async def until_probed(self) -> None:
        """Wait for a good probe of those that serve: there is none of the others."""
        for replica in self.replicas:
            await self.picker.until_metric(
                "epp_endpoint_rtt_seconds", lambda value: value > 0, endpoint=replica.address
            )


async def statuses(requests: int, dead: int) -> Counter[int]:
    """Send requests, forty at a time, from the first round of probes until long after the ejections; count answers."""
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name:
        async with MostlyDead(Path(name), dead) as serving:
            seen = Counter[int]()

            async def ask(client: int) -> None:
                for number in range(requests // _CLIENTS):
                    status, _ = await serving.chat(f"question {client} {number}")
                    seen[status] += 1
                    await asyncio.sleep(0.5)

            await asyncio.gather(*map(ask, range(_CLIENTS)))
            return seen
