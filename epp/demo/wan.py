"""`make demo-wan`: the same load over real TCP to three regions, by one tier and by two; and faults.

    python -m epp.demo.wan [--full] [--ways one-tier,two-tier] [--loss 0,0.5]

Needs root and TUN devices; says so and ends well where they are not there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from epp.bench.cpu import cpu_s
from epp.demo.output import output
from epp.demo.stack import REGIONS
from epp.demo.wan_load import SHORT, WARM_UP, Client
from epp.demo.wan_report import Cell, Fault, Yardstick, fault_table, table, yardstick_table
from epp.demo.wan_world import WAYS, Route, World, network
from epp.errors import EppError
from epp.wan.network import HUB, Network, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.demo.wan_load import Burst, Sample

_COMPARED = ("one-tier", "two-tier")
_FULL = tuple(WAYS)
_FULL_ROUNDS = 4
#: Lost packets make few requests slow: more of them are needed to see it.
_LOSSES = (0.0, 0.005)
#: The middle one: far enough to notice, near enough to be picked.
_FAULTY = "frankfurt"
_INTERVAL_S = 0.4
_PHASE_S = {"before": 2.0, "during": 8.0, "after": 5.0}
#: Envoy writes its log ten times a second.
_LOG_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="demo-wan", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all ways, four rounds each (half an hour)")
    parser.add_argument("--ways", default="", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--loss", default="", help="shares of packets lost in each direction, in percent")
    parser.add_argument("--rounds", type=int, default=0, help="times that the schedule is run (1; full: 4)")
    parser.add_argument("--congestion", default="cubic", help="congestion control (%(default)s)")
    parser.add_argument("--no-faults", action="store_true", help="leave the faults out")
    parser.add_argument("--only-faults", action="store_true", help="leave the comparison out")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-wan-out"), help="folder for output (%(default)s)"
    )
    arguments = parser.parse_args(argv)
    console = Console(width=150 if not sys.stdout.isatty() else None)
    if reason := why_not():
        console.print(f"skipped: {reason}")
        return 0
    names = [name for name in arguments.ways.split(",") if name] or (_FULL if arguments.full else _COMPARED)
    if unknown := set(names) - set(WAYS):
        parser.error(f"no such way: {', '.join(sorted(unknown))}")
    losses = _losses(parser, arguments.loss)
    if arguments.rounds < 0:
        parser.error("--rounds must be 1 or more")
    _check_congestion(parser, arguments.congestion)
    end_like_ctrl_c()
    rounds = arguments.rounds or (_FULL_ROUNDS if arguments.full else 1)
    run = _Run(arguments.out, console, arguments.congestion)
    try:
        with output(arguments.out), network() as made, made.joined(HUB):
            faults = () if arguments.no_faults else _COMPARED
            compared = () if arguments.only_faults else names
            asyncio.run(run.all([(name, loss) for loss in losses for name in compared], rounds, faults, made))
    except KeyboardInterrupt:
        return 130
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2
    return 0


def _losses(parser: argparse.ArgumentParser, text: str) -> Sequence[float]:
    """Shares of packets, from percent."""
    try:
        losses = [float(part) / 100 for part in text.split(",") if part]
    except ValueError:
        losses = [-1.0]
    if not all(0.0 <= loss <= 1.0 for loss in losses):
        parser.error(f"--loss takes numbers of percent from 0 to 100, such as 0,0.5, not {text!r}")
    return losses or _LOSSES


def _check_congestion(parser: argparse.ArgumentParser, name: str) -> None:
    """Refuse what the kernel does not have: Envoys would not listen, after half a minute."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            parser.error(f"--congestion: this kernel does not take {name!r}: {error.strerror}")


def end_like_ctrl_c() -> None:
    """Have SIGTERM and a terminal that is gone end this process in order, as Ctrl-C does.

    Else its namespaces would stay until the next run.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


class _Run:
    """One run of the demonstration."""

    def __init__(self, folder: Path, console: Console, congestion: str) -> None:
        self._folder, self._console, self._congestion = folder, console, congestion
        self._regions = [region.name for region in REGIONS]

    async def all(
        self, cells: Sequence[tuple[str, float]], rounds: int, faults: Sequence[str], made: Network
    ) -> None:
        """The yardsticks, the comparison, the faults."""
        say, started_s = self._console.print, time.monotonic()
        async with World(made, self._folder) as world:
            yardsticks = {region: await self._yardstick(world, region) for region in self._regions}
            say(yardstick_table(yardsticks, {region.name: region.rtt_ms for region in REGIONS}))
            measured = []
            for name, loss in cells:
                measured.append(await self._cell(world, name, loss, SHORT * rounds))
                cell = measured[-1]
                say(f"{cell.way}, {loss:.1%} lost: {len(cell.samples)} requests", highlight=False)
            if measured:
                say(table(measured, yardsticks))
            world.shape(0.0)
            seen = [fault for name in faults for fault in await self._faults(world, name)]
            if seen:
                say(fault_table(seen, _FAULTY))
        load = os.getloadavg()[1]
        say(f"{time.monotonic() - started_s:.0f} s; load average {load:.1f} on {os.cpu_count()} cores")
        results = {"cells": measured, "faults": seen, "yardsticks": yardsticks}
        (self._folder / "results.json").write_bytes(msgspec.json.encode(results))

    async def _yardstick(self, world: World, region: str) -> Yardstick:
        async with Client(f"http://{world.engine(region)}") as client:
            world.near(region)
            engine_ms = await client.warm_ms(6)
        world.shape(0.0)
        async with Client(f"http://{world.engine(region)}") as client:
            return Yardstick(engine_ms, await client.warm_ms(8))

    async def _cell(self, world: World, name: str, loss: float, schedule: Sequence[Burst]) -> Cell:
        way = WAYS[name]
        world.shape(loss)
        folder = self._folder / f"{name}-{loss * 100:g}"
        async with Route(world, way, folder, congestion=self._congestion) as route:
            async with Client(route.envoy.listener_url) as client:
                await client.bursts(self._regions, WARM_UP)
                cold_before, opened_before = await self._so_far(route)
                before_s = _cpu_s(route)
                samples = await client.bursts(self._regions, schedule)
                used_s = _cpu_s(route) - before_s
            cold, opened = await self._so_far(route)
        return Cell(
            way=way.said,
            loss=loss,
            samples=samples,
            cold=(cold - cold_before) / max(1, len(samples)),
            opened=opened - opened_before,
            cpu_ms=used_s * 1e3 / max(1, len(samples)),
        )

    async def _so_far(self, route: Route) -> tuple[int, int]:
        """Requests that were the first on their connection, and connections opened, since the start."""
        await asyncio.sleep(_LOG_S)
        opened = await route.envoy.stats("cluster.replicas.upstream_cx_total")
        used = {entry["connection"] for entry in route.log()}
        return len(used), sum(opened.values())

    async def _faults(self, world: World, name: str) -> list[Fault]:
        way, found = WAYS[name], []
        folder = self._folder / f"{name}-faults"
        async with (
            Route(world, way, folder, congestion=self._congestion) as route,
            Client(route.envoy.listener_url) as client,
        ):
            await client.bursts(self._regions, WARM_UP)
            if way.connections:
                phases = {"before": await client.steady(_PHASE_S["before"], _INTERVAL_S)}
                route.relays[_FAULTY].kill()
                phases["during"] = await client.steady(_PHASE_S["during"], _INTERVAL_S)
                await route.start_relay(_FAULTY)
                phases["after"] = await client.steady(_PHASE_S["after"], _INTERVAL_S)
                found.append(Fault(way.said, "relay killed", phases))
            found.append(Fault(way.said, "region cut off", await self._cut(world, client)))
        return found

    async def _cut(self, world: World, client: Client) -> dict[str, Sequence[Sample]]:
        """Requests of all three phases overlap: those of a cut region hang while the next ones are sent."""
        asking = {}
        for phase, seconds in _PHASE_S.items():
            world.network.change(_FAULTY, cut=phase == "during")
            asking[phase] = asyncio.create_task(client.steady(seconds, _INTERVAL_S))
            await asyncio.sleep(seconds)
        return {phase: await task for phase, task in asking.items()}


def _cpu_s(route: Route) -> float:
    """CPU time of the global Envoy and of the relays so far."""
    return sum(cpu_s(pid) for pid in (route.envoy.pid, *(relay.pid for relay in route.relays.values())))


if __name__ == "__main__":
    sys.exit(main())
