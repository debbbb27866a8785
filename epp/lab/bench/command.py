"""`epp bench`: what requests cost here, goals beside measurements, in CPU time and ratios."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from epp.envoy.launch import tied_to_parent
from epp.envoy.process import find_envoy
from epp.errors import EppError
from epp.lab.bench import (
    core,
    figures,
    idle,
    index,
    learned,
    recorded,
    server,
    soak,
    streams,
    through_envoy,
    tokens,
)
from epp.lab.bench.cpu import PREFER_VARIABLE, cpu_s, instructions_offered, prefer
from epp.lab.bench.figures import Figures

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

#: What ``all`` runs, in this order; under twenty minutes on two cores.
ALL = ("core", "learned", "server", "envoy", "streams", "index", "idle")
LONG = ("long-index", "soak")
#: Sizes of `epp.lab.bench.index` by the name of the bench.
INDEXES = {"index": ("1M", "10M"), "long-index": ("100M",)}
#: Needs files that are not ours, so ``all`` runs it only where they are named.
TOKENS = "tokens"
#: Rounds unless told otherwise.
_ROUNDS = {
    "core": 5,
    "learned": 5,
    "server": 3,
    "envoy": 3,
    "streams": 1,
    "index": 1,
    "idle": 1,
    "tokens": 5,
    "long-index": 1,
    "soak": 1,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("name", choices=("all", *ALL, TOKENS, *LONG), help="what to measure")
    parser.add_argument("--rounds", type=int, help="rounds of each, taken in turns (3 to 5, slow ones 1)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the figures as a baseline")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="print ratios to a saved baseline")
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="another source tree, measured in turns with this one"
    )
    parser.add_argument("--address", default="", help="server: another picker's ext_proc listener, host:port")
    parser.add_argument("--pid", type=int, default=0, help="server: its process id")
    names = ",".join(mode.value for mode in recorded.Mode)
    parser.add_argument(
        "--modes", default=names, help="server: ways in which requests are shown (%(default)s)"
    )
    parser.add_argument("--requests", type=int, help="of a burst (server, envoy), or in all (soak)")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="tokens, all: holds a model's tokenizer.json"
    )
    parser.add_argument(
        "--prefer",
        action="store_true",
        help="have the scheduler run what is measured before all else here (Linux autogroups; as root)",
    )
    parser.add_argument("--endpoints", default="3,100,1000", help="core: sizes of the fleet (%(default)s)")
    parser.add_argument("--sizes", default="200,1k,18k,100k", help="core: prompt lengths (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 also where goals are missed: the table says so."""
    _check(arguments)
    names: Sequence[str] = ALL if arguments.name == "all" else (arguments.name,)
    if arguments.name == "all" and arguments.tokenizer is not None:
        names = (*ALL, TOKENS)
    if "envoy" in names:
        find_envoy()  # now: without one, all that was measured until then would be lost
    begun_s = time.monotonic()
    if arguments.prefer:
        os.environ[PREFER_VARIABLE] = "1"
        prefer(os.getpid())
    print(", ".join(f"{name} {value}" for name, value in figures.settings().items()), flush=True)
    if not instructions_offered():
        print("no instruction counts: perf stat is missing, not permitted, or has no counter here")
    found, before = Figures(), None
    # Now, because a file that cannot be read would cost all that was measured until then.
    saved = None if arguments.baseline is None else figures.load(arguments.baseline)
    if arguments.against is not None:
        before = Figures()
        for number in range(arguments.rounds or _ROUNDS[names[0]]):
            print(f"round {number + 1}", flush=True)
            before.merge(_in_tree(arguments, arguments.against))
            found.merge(_in_tree(arguments, Path(__file__).resolve().parents[3]))
    else:
        for name in names:
            print(f"{name} ...", flush=True)
            _measure(found, name, arguments)
        _split(found)
    if saved is not None:
        before, taken = saved
        print("baseline: " + ", ".join(f"{name} {value}" for name, value in taken.items()))
    print(found.table(before, paired=arguments.against is not None))
    print(f"{time.monotonic() - begun_s:.0f} s; others on this machine are in none of it, but slow all of it")
    if arguments.save is not None:
        found.save(arguments.save)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what does not fit together.

    Raises:
        EppError: naming the flag.
    """
    if bool(arguments.address) != bool(arguments.pid):
        raise EppError("--address and --pid go together: who answers, and whose CPU is counted")
    if arguments.address and arguments.name != "server":
        raise EppError("--address is for `epp bench server`: the other benches measure this picker")
    if arguments.address:
        _check_process(arguments.pid)
    if arguments.against is not None:
        _check_against(arguments)
    if arguments.name == TOKENS and arguments.tokenizer is None:
        raise EppError("--tokenizer FOLDER: which tokenizer is to be measured")
    for flag in ("rounds", "requests"):
        if getattr(arguments, flag) is not None and getattr(arguments, flag) < 1:
            raise EppError(f"--{flag} must be 1 or more")
    # As with a baseline: a file that cannot be written would cost all that was measured.
    if arguments.save is not None and (arguments.save.is_dir() or not arguments.save.parent.is_dir()):
        raise EppError(f"--save {arguments.save}: no file in a folder that is there")
    sizes = arguments.endpoints.split(",")
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise EppError(f"--endpoints: {arguments.endpoints!r} are no sizes of a fleet, e.g. 3,100")
    for flag, known in (("sizes", set(core.SIZES)), ("modes", {mode.value for mode in recorded.Mode})):
        unknown = set(getattr(arguments, flag).split(",")) - known
        if unknown:
            raise EppError(f"--{flag}: no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")


def _check_process(pid: int) -> None:
    """Refuse a process whose CPU cannot be read.

    Raises:
        EppError: there is none of that id.
    """
    try:
        if pid > 0:  # below, the kernel's clock would be the bench's own
            cpu_s(pid)
            return
    except OSError:
        pass
    raise EppError(f"--pid {pid}: no such process on this machine")


def _check_against(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be measured in turns with another tree.

    Raises:
        EppError: naming the flag.
    """
    if not (arguments.against / "epp").is_dir():
        raise EppError(f"--against {arguments.against}: no source tree with epp in it")
    if arguments.address:
        raise EppError("--against measures the pickers of two trees; --address is another one: leave one out")
    if arguments.baseline is not None:
        raise EppError("--against and --baseline are both what ratios are taken to: leave one out")


def _measure(found: Figures, name: str, arguments: argparse.Namespace) -> None:
    rounds = arguments.rounds or _ROUNDS[name]
    if name == "core":
        sizes = arguments.sizes.split(",")
        endpoints = [int(size) for size in arguments.endpoints.split(",")]
        for number in range(rounds):
            core.measure(found, number, sizes, endpoints)
            core.measure_observing(found, number, sizes[:1] + ["18k"] * ("18k" in sizes[1:]), endpoints[:1])
    elif name == "learned":
        for number in range(rounds):
            learned.measure(found, number)
    elif name == TOKENS:
        for number in range(rounds):
            tokens.measure(found, number, arguments.tokenizer)
    elif name in INDEXES:
        for _ in range(rounds):
            for size in INDEXES[name]:
                index.measure(found, size)
    else:
        uvloop.run(_served(found, name, rounds, arguments))


async def _served(found: Figures, name: str, rounds: int, arguments: argparse.Namespace) -> None:
    if name == "server":
        modes = recorded.modes(arguments.modes)
        bench = server.ServerBench(
            modes,
            address=arguments.address,
            pid=arguments.pid,
            requests=arguments.requests or server.REQUESTS,
        )
        async with bench:
            for number in range(rounds):
                await bench.measure(found, number)
    elif name == "envoy":
        async with through_envoy.EnvoyBench(requests=arguments.requests or through_envoy.REQUESTS) as whole:
            for number in range(rounds):
                await whole.measure(found, number)
    elif name == "streams":
        for number in range(rounds):
            for count in streams.OPEN:
                await streams.measure(found, number, count)
    elif name == "idle":
        for _ in range(rounds):
            for endpoints in idle.ENDPOINTS:
                await idle.measure(found, endpoints)
    else:
        for _ in range(rounds):
            await soak.run(found, arguments.requests or soak.REQUESTS)
    await asyncio.sleep(0)


def _split(found: Figures) -> None:
    """Where a request's CPU goes, constant-message mode: what is measured alone, and the rest."""
    for size, prompt in (("200 tokens", "200"), ("72 KB", "18k")):
        if not {f"core/{prompt}/3/answer", f"server/above bare, builtin/{size}"} <= found.found.keys():
            continue  # left out by a flag
        alone = found.median
        whole = alone(f"server/picker: constant/{size}")
        parts = {
            "transport": alone(f"server/bare, builtin: constant/{size}"),
            "parse": alone(f"core/{prompt}/3/warm: parse"),
            "decide": alone(f"core/{prompt}/3/warm: decide"),
        }
        parts["observe"] = alone(f"core/{prompt}/3/answer") - parts["parse"] - parts["decide"]
        parts["observe"] += alone(f"core/{prompt}/3/reports")
        parts["protocol, sockets, records"] = whole - sum(parts.values())
        for part, value in parts.items():
            found.add(f"split/{size}/{part}", "ms CPU", value, f"of {whole:.2f}")


def _in_tree(arguments: argparse.Namespace, tree: Path) -> Figures:
    """One round in a process of its own that imports from a source tree.

    Raises:
        EppError: it failed.
    """
    path = (str(tree.resolve()), os.environ.get("PYTHONPATH"))
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        saved = Path(folder) / "figures.json"
        words: Sequence[str] = (
            arguments.name, "--rounds", "1", "--save", str(saved), "--modes", arguments.modes,
            "--endpoints", arguments.endpoints, "--sizes", arguments.sizes,
            *(("--requests", str(arguments.requests)) if arguments.requests else ()),
            *(("--tokenizer", str(arguments.tokenizer.resolve())) if arguments.tokenizer else ()),
        )  # fmt: skip
        done = subprocess.run(  # noqa: S603  # ourselves
            tied_to_parent(sys.executable, "-m", "epp", "bench", *words),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EppError(f"the bench failed in {tree}: {done.stderr[-1500:]}")
        return figures.load(saved)[0]
