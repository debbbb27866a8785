"""Three pickers that share one truth over NATS, and what their failures cost: ``make demo-pickers``.

Each picker has an Envoy of its own, which falls back to the others; the clients are divided among the Envoys.
In turn: all well; a picker is killed; it is back; NATS is killed; NATS is back; a fourth picker joins.
Requests go to the Envoys in turn, so that the turns of a conversation are decided by different pickers.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from epp.config.address import split_address
from epp.errors import EppError
from epp.ops.doctor.context import Page
from epp_lab.compare.load import run_load
from epp_lab.demo.example import example_parser, run_example
from epp_lab.demo.nats import Nats
from epp_lab.demo.stack import REGIONS, Stack
from epp_lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from epp_lab.compare.load import RequestResult

#: Time for pickers to hear each other, or to notice that they do not.
_HEARD_S = 30.0


def main() -> int:
    """Run the demo."""
    return run_example(example_parser("pickers", __doc__), show)


def show(arguments: argparse.Namespace) -> int:
    """Run all phases, and print a row for each."""
    table = Table("phase", "requests", "failed", "TTFT p50", "TTFT p95", "E2E p95", "cached", "heard")
    table.title = (
        "a picker before each Envoy, the same replicas; ms; heard: seconds until all peers were heard"
    )
    uvloop.run(run_phases(arguments.out.absolute(), table))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


async def run_phases(out: Path, table: Table) -> None:
    """Run the phases."""
    (out / "secret").write_text(secrets.token_hex(32))
    nats = Nats(out)
    sections = {"nats": {"url": nats.url}, "prefix": {"secret_file": str(out / "secret")}}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(nats)
        pickers = [await stack.enter_async_context(Stack(out / "one", REGIONS, sections, envoy=None))]

        async def join(name: str) -> None:
            neighbour = Stack(out / name, (), sections, endpoints=pickers[0].endpoints, envoy=None)
            pickers.append(await stack.enter_async_context(neighbour))

        async def start_envoy(picker: Stack) -> None:
            others = (other.listening["grpc"] for other in pickers if other is not picker)
            await picker.start_envoy(fallback_pickers=tuple(map(split_address, others)))

        async def phase(name: str, number: int, began_s: float | None = None) -> None:
            waited = "-" if began_s is None else f"{time.monotonic() - began_s:.1f}"
            results = await send(pickers, number)
            table.add_row(name, *summed(results), waited)

        began_s = time.monotonic()
        for name in ("two", "three"):
            await join(name)
        for picker in pickers:
            await start_envoy(picker)
        await heard(pickers, 2)
        await phase("all well", 1, began_s)

        os.kill(pickers[1].pids["picker"], signal.SIGKILL)
        await phase("a picker is killed", 2)

        began_s = time.monotonic()
        await pickers[1].start_picker()
        await heard(pickers, 2)
        await phase("it is back", 3, began_s)

        nats.kill()
        await nats.stop()
        await phase("NATS is killed", 4)

        began_s = time.monotonic()
        await nats.start()
        await heard(pickers, 2)
        await phase("NATS is back", 5, began_s)

        began_s = time.monotonic()
        await join("four")
        await start_envoy(pickers[-1])
        await heard(pickers, 3)
        await phase("a fourth picker joins", 6, began_s)


async def send(pickers: Sequence[Stack], seed: int) -> list[RequestResult]:
    """Send a load, its requests to the Envoys in turn, whatever conversation they belong to."""
    requests = generate(DEMO, seed)
    runs = (
        run_load(
            [replace(request, after=None) for request in requests[number :: len(pickers)]],
            picker.load_options(),
        )
        for number, picker in enumerate(pickers)
    )
    return [result for results in await asyncio.gather(*runs) for result in results]


async def heard(pickers: Sequence[Stack], others: int) -> None:
    """Wait until each of these pickers hears so many others.

    Raises:
        EppError: they do not.
    """
    deadline_s = time.monotonic() + _HEARD_S
    async with aiohttp.ClientSession() as http:
        while True:
            found = []
            for picker in pickers:
                async with http.get(f"{picker.picker_url}/metrics") as answer:
                    found.append(Page(await answer.text()).total("epp_cluster_peers"))
            if found == [others] * len(pickers):
                return
            if time.monotonic() > deadline_s:
                raise EppError(f"pickers hear {found} others instead of {others} each")
            await asyncio.sleep(0.1)


def summed(results: Sequence[RequestResult]) -> list[str]:
    """Sum up a phase for its row."""
    fine = [result for result in results if not result.error]
    ttft = [result.ttft_ms for result in fine if result.ttft_ms is not None]
    e2e = [result.e2e_ms for result in fine]
    cached = sum(result.cached_tokens or 0 for result in fine) / sum(
        result.prompt_tokens or 0 for result in fine
    )
    figures = (np.percentile(ttft, 50), np.percentile(ttft, 95), np.percentile(e2e, 95))
    failed = len(results) - len(fine)
    return [str(len(results)), str(failed), *(f"{figure:,.0f}" for figure in figures), f"{cached:.0%}"]


if __name__ == "__main__":
    sys.exit(main())
