"""The pickers that are attacked: alone as `epp serve` runs it, or behind a real Envoy of one of four kinds."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from epp.envoy.settings import MESSAGE_TIMEOUT_MS, Variant
from epp.lab.bench.processes import picker, pool_of
from tests.attacks.rig import ATTACKER, CONFIG, OTHER, Probe, Rig
from tests.gateways.rig import GATEWAYS, as_written
from tests.kit.picker import Serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ISTIO = "istio"
BEHIND = (*(variant.value for variant in Variant), ISTIO)


@contextmanager
def alone(*, tls: bool = False) -> Iterator[Rig]:
    """A picker with three endpoints that do not exist, a well-behaved stream from either address, /readyz."""
    config = {**CONFIG, "listen": {**CONFIG["listen"], "tls": {"self_signed": True} if tls else None}}
    flags = ["tls"] if tls else []
    with (
        tempfile.TemporaryDirectory(prefix="epp-attacks-") as name,
        asyncio.Runner() as runner,
        contextlib.ExitStack() as stack,
    ):
        folder, started = Path(name), picker(pool_of(3), **config)
        server = runner.run(started.__aenter__())
        stack.callback(lambda: runner.run(started.__aexit__(None, None, None)))
        probes = [
            Probe(folder, "same", "pick", server.grpc, ATTACKER, *flags),
            Probe(folder, "other", "pick", server.grpc, OTHER, *flags),
            Probe(folder, "ready", "ready", server.http, ATTACKER),
        ]
        with Rig(server.pid, server.grpc, probes, tls=tls) as rig:
            yield rig


@asynccontextmanager
async def gateway(kind: str, folder: Path) -> AsyncIterator[Serving]:
    """Three simulated replicas, a picker, and an Envoy of a kind out of `BEHIND`, with our usual timeout."""
    variant = Variant.FULL_DUPLEX if kind == ISTIO else Variant(kind)
    envoy = {"message_timeout_ms": MESSAGE_TIMEOUT_MS}
    # An ORIGINAL_DST cluster takes a single endpoint.
    policy = {"fallbacks": 0} if variant is Variant.ORIGINAL_DST else {}
    rendered = as_written(GATEWAYS["istio-closed"]) if kind == ISTIO else nullcontext()
    with rendered:
        async with Serving(folder, variant=variant, envoy=envoy, policy=policy, **CONFIG) as serving:
            yield serving


async def behind(kind: str, attack: Callable[[Rig], None]) -> None:
    """Attack a picker behind an Envoy through which chats go.

    Args:
        kind: one of `BEHIND`.
        attack: called in a thread, because the replicas are in this process.
    """
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name:
        folder = Path(name)
        async with gateway(kind, folder) as serving:
            probes = [
                Probe(folder, "chat", "chat", serving.url.removeprefix("http://"), ATTACKER),
                Probe(folder, "ready", "ready", serving.picker.http, ATTACKER),
            ]

            def run() -> None:
                with Rig(serving.picker.pid, serving.picker.grpc, probes) as rig:
                    attack(rig)

            await asyncio.to_thread(run)
