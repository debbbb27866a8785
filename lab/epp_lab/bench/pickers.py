"""What sharing costs: four pickers over NATS and the same four alone, driven straight, in turns.

Each is sent `RATE` conversations a second, a turn before and the turn that is measured, with first tokens and
the access log as Envoy sends them. CPU is that of the pickers; what NATS takes is a figure of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from epp.ops.doctor.context import Page
from epp_lab.bench.client import Proxy
from epp_lab.bench.processes import picker, pool_of, spent_s
from epp_lab.bench.recorded import Mode, bodies, conversation
from epp_lab.demo.nats import Nats

if TYPE_CHECKING:
    import argparse

    from epp_lab.bench.figures import Figures
    from epp_lab.bench.processes import Server

PICKERS, ENDPOINTS, TOKENS = 4, 8, 2000
#: Conversations a second to each picker, sent a few at a time.
RATE, AT_ONCE, SECONDS = 125, 5, 12
#: To all pickers: of each conversation two.
REQUESTS = 2 * RATE * SECONDS * PICKERS


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure both fleets in turn."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        nats = await stack.enter_async_context(Nats(folder))
        fleets = {}
        for name, sections in (("alone", {}), ("shared", {"nats": {"url": nats.url}})):
            pickers = [picker(pool_of(ENDPOINTS), **sections) for _ in range(PICKERS)]
            servers = [await stack.enter_async_context(each) for each in pickers]
            proxies = [await stack.enter_async_context(Proxy(server, reports=True)) for server in servers]
            fleets[name] = [*zip(servers, proxies, strict=True)]
        for number in range(rounds):
            spent_ms = {}
            for name, fleet in fleets.items():
                work = (_drive(proxy, number * PICKERS + at) for at, (_, proxy) in enumerate(fleet))
                pids = [server.pid for server, _ in fleet]
                _lasted_s, pickers_s, nats_s = await spent_s(asyncio.gather(*work), pids, [nats.pid])
                spent_ms[name] = pickers_s / REQUESTS * 1e3
                found.add(f"pickers/{name}", "ms CPU", spent_ms[name], f"{REQUESTS} requests")
                if name == "shared":
                    found.add("pickers/NATS", "ms CPU", nats_s / REQUESTS * 1e3)
                    ages_s = [_age_s(server) for server, _ in fleet]
                    found.add("pickers/change age p99", "ms", max(ages_s) * 1e3, "of the worst picker")
            found.add("pickers/shared of alone", "ratio", spent_ms["shared"] / spent_ms["alone"])


def _age_s(server: Server) -> float:
    with urlopen(f"http://{server.http}/metrics") as answer:  # our own address
        return Page(answer.read().decode()).total("epp_cluster_change_age_seconds", quantile="0.99")


async def _drive(proxy: Proxy, seed: int) -> None:
    """Send conversations at a pace."""
    pairs = [bodies(TOKENS, seed * 100_000 + at) for at in range(RATE * SECONDS)]
    turns = [body for pair in pairs for body in pair]
    held = [conversation(Mode.CONSTANT, body, 1) for body in turns]
    loop = asyncio.get_running_loop()
    begun_s, sent = loop.time(), []
    for at in range(0, len(held), AT_ONCE):
        await asyncio.sleep(begun_s + at / RATE - loop.time())
        sent.append(asyncio.ensure_future(proxy.burst(held[at : at + AT_ONCE], AT_ONCE, reported=True)))
    await asyncio.gather(*sent)
