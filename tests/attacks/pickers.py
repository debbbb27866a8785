"""The pickers that are attacked: alone as `epp serve` runs it, or behind a real Envoy of one of four kinds."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from epp.envoy.settings import MESSAGE_TIMEOUT_MS, Variant
from epp_lab.bench.processes import picker, pool_of
from tests.attacks.rig import ATTACKER, CONFIG, OTHER, Probe, Rig
from tests.gateways.rig import GATEWAYS, as_written
from tests.kit.nats import nats_server
from tests.kit.picker import Serving
from tests.kit.replicas import metric

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from epp.config.pool import EndpointSpec

ISTIO = "istio"
#: As long as pickers may take to hear each other: they say something each second.
_SHARES_S = 10.0
BEHIND = (*(variant.value for variant in Variant), ISTIO)


@contextmanager
def alone(
    *, tls: bool = False, pool: Sequence[EndpointSpec] = tuple(pool_of(3)), **sections: Any
) -> Iterator[Rig]:
    """A picker with endpoints that do not exist, a well-behaved stream from either address, /readyz.

    Args:
        tls: whether its listener speaks TLS.
        pool: the endpoints.
        sections: of its configuration, laid over `CONFIG`.
    """
    listen = {**CONFIG["listen"], "tls": {"self_signed": True} if tls else None}
    config = {**CONFIG, "listen": listen, **sections}
    flags = ["tls"] if tls else []
    with (
        tempfile.TemporaryDirectory(prefix="epp-attacks-") as name,
        asyncio.Runner() as runner,
        contextlib.ExitStack() as stack,
    ):
        folder, started = Path(name), picker(pool, **config)
        server = runner.run(started.__aenter__())
        stack.callback(_end, runner, started)
        probes = [
            Probe(folder, "same", "pick", server.grpc, ATTACKER, *flags),
            Probe(folder, "other", "pick", server.grpc, OTHER, *flags),
            Probe(folder, "ready", "ready", server.http, ATTACKER),
        ]
        with Rig(server.pid, server.grpc, probes, tls=tls, http=server.http) as rig:
            yield rig


@contextmanager
def together() -> Iterator[Rig]:
    """Two pickers that share over NATS, the first one probed as by `alone`, with its live page loaded."""
    with (
        tempfile.TemporaryDirectory(prefix="epp-attacks-") as name,
        asyncio.Runner() as runner,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        nats = nats_server(folder)
        runner.run(nats.start())
        stack.callback(lambda: runner.run(nats.stop()))
        servers = []
        for _ in range(2):
            started = picker(pool_of(3), **CONFIG, nats={"url": nats.url})
            servers.append(runner.run(started.__aenter__()))
            stack.callback(_end, runner, started)
        first, second = servers
        probes = [
            Probe(folder, "same", "pick", first.grpc, ATTACKER),
            Probe(folder, "other", "pick", first.grpc, OTHER),
            Probe(folder, "ready", "ready", first.http, ATTACKER),
        ]
        page(first.http, "ui")

        def works() -> str:
            """Both hear each other once nobody else is there, and the page is served."""
            counts = [peer_messages(server.http) for server in (first, second)]
            deadline_s = time.monotonic() + _SHARES_S
            while not all(
                peer_messages(server.http) > count
                for server, count in zip((first, second), counts, strict=True)
            ):
                if time.monotonic() > deadline_s:
                    return "they do not share any more"
                time.sleep(0.1)
            return "" if b"<html" in page(first.http, "ui").lower() else "no page"

        address = nats.url.removeprefix("nats://")
        with Rig(first.pid, address, probes, works=works) as rig:
            yield rig


def _end(runner: asyncio.Runner, started: AbstractAsyncContextManager[object]) -> None:
    runner.run(started.__aexit__(None, None, None))


def page(http: str, path: str) -> bytes:
    """A page of a picker."""
    with urlopen(f"http://{http}/{path}", timeout=10) as answer:
        found: bytes = answer.read()
    return found


def peer_messages(http: str) -> float:
    """Messages that a picker has taken of others."""
    return metric(page(http, "metrics").decode(), "epp_cluster_messages_total", {"result": "received"})


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
