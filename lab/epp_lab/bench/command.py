"""`epp bench`: what requests cost here, goals beside measurements, in CPU time and ratios."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import epp
from epp.config.schema import PolicySection
from epp.envoy.launch import tied_to_parent
from epp.envoy.process import find_envoy
from epp.errors import EppError
from epp_lab.bench import (
    cluster,
    core,
    envoy,
    events,
    idle,
    index,
    peers,
    pickers,
    server,
    soak,
    tracing,
    waiting,
)
from epp_lab.bench.figures import Figures, load, settings
from epp_lab.bench.processes import cpu_s
from epp_lab.bench.recorded import Mode
from epp_lab.compare.plan import counts, listed, number_from

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


#: How many rounds unless asked otherwise, and what measures.
CASES: dict[str, tuple[int, Callable[[Figures, argparse.Namespace, int], Coroutine[None, None, None]]]] = {
    "core": (5, core.measure),
    "policies": (5, core.measure_policies),
    "server": (3, server.measure),
    "envoy": (3, envoy.measure),
    "index": (1, partial(index.measure, sizes=("1M", "10M"))),
    "idle": (1, idle.measure),
    "tokens": (5, core.measure_tokens),
    "long-index": (1, partial(index.measure, sizes=("100M",))),
    "soak": (1, soak.measure),
    "pickers": (3, pickers.measure),
    "cluster": (9, cluster.measure),
    "tracing": (5, tracing.measure),
    "waiting": (5, waiting.measure),
    "pairs": (5, core.measure_pairs),
    "events": (3, events.measure),
}
#: What each measures, for ``--help``.
_NAMES = (
    "core: the decision alone; policies: by llm-d's profiles and a reward model; server: the ext_proc server "
    "over loopback, beside bare ones; envoy: through a real Envoy; index: of 1M and 10M cached tokens "
    "(long-index: 100M); idle: scraped endpoints alone; tokens: a model's own tokenizer; soak: a million "
    "requests, for leaks; pickers: four that share, and alone; cluster: their messages; tracing: spans; "
    "waiting: 10,000 requests in the queue; pairs: of endpoints that prefill and that decode; "
    "events: of engines' KV caches; "
    "peers: this gateway beside others"
)
#: What ``all`` runs, in this order; under twenty minutes on two cores.
ALL = ("core", "policies", "server", "envoy", "index", "idle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("name", choices=("all", *CASES, "peers"), help=_NAMES)
    add("--rounds", type=number_from(1), help="rounds of each, taken in turns (1 to 5)")
    add("--save", type=Path, metavar="FILE", help="write the figures as a baseline")
    add("--baseline", type=Path, metavar="FILE", help="print ratios to a saved baseline")
    add("--against", type=Path, metavar="TREE", help="another source tree, measured in turns with this one")
    add("--address", default="", help="server: another picker's ext_proc listener, host:port")
    add("--pid", type=int, default=0, help="server: its process id")
    add("--peer", action="append", default=[], metavar="NAME=URL", help="peers: a gateway that runs already")
    add("--modes", type=listed([*Mode]), default=",".join(Mode), help="server: by commas, of %(default)s")
    add("--requests", type=number_from(1), help="of a burst (server, envoy), or in all (soak)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="tokens: holds a model's tokenizer.json")
    add("--endpoints", type=counts, default="3,100,1000", help="core: sizes of the fleet (%(default)s)")
    add("--sizes", type=listed(core.SIZES), default=",".join(core.SIZES), help="core: of %(default)s")
    add("--policy", default=PolicySection().name, help="core: what decides (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0 also where goals are missed: the table marks them."""
    _check(arguments)
    if arguments.name == "peers":  # keeps its runs, and has a table of its own
        return peers.run(arguments)
    begun_s, found = time.monotonic(), Figures(settings=settings())
    print(", ".join(f"{name} {value}" for name, value in found.settings.items()), flush=True)
    # Now, because a file that cannot be read would cost all that was measured until then.
    before = None if arguments.baseline is None else load(arguments.baseline)
    if arguments.against is not None:
        before = Figures()
        for _ in range(arguments.rounds or 3):
            before.merge(_in_tree(arguments.against))
            found.merge(_in_tree(Path(epp.__file__).parents[1]))
    else:
        for name in ALL if arguments.name == "all" else (arguments.name,):
            print(f"{name} ...", flush=True)
            rounds, measure = CASES[name]
            uvloop.run(measure(found, arguments, arguments.rounds or rounds))
    print(found.table(before))
    print(f"{time.monotonic() - begun_s:.0f} s")
    if arguments.save is not None:
        found.save(arguments.save)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what does not fit together.

    Raises:
        EppError: naming the flag.
    """
    name, address, against = arguments.name, arguments.address, arguments.against
    if bool(address) != bool(arguments.pid) or (address and name != "server"):
        raise EppError("--address and --pid go together, with `epp bench server` alone")
    if address:
        try:
            cpu_s(arguments.pid)
        except OSError:
            raise EppError(f"--pid {arguments.pid}: no such process on this machine") from None
    if against is not None and (address or arguments.baseline is not None):
        raise EppError("--against, --baseline and --address exclude each other")
    if against is not None and not (against / "epp" / "__main__.py").is_file():
        raise EppError(f"--against {against}: no source tree of this project")
    if name == "tokens" and arguments.tokenizer is None:
        raise EppError("--tokenizer FOLDER: which tokenizer is to be measured")
    if name in ("all", "envoy"):
        find_envoy()  # now: without one, all that was measured until then would be lost


def _in_tree(tree: Path) -> Figures:
    """Measure one round by a source tree's own command, with this command's words.

    Raises:
        EppError: it failed there.
    """
    ours = argparse.ArgumentParser(add_help=False)
    for flag in ("--against", "--rounds", "--save"):
        ours.add_argument(flag)
    _, words = ours.parse_known_args(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        saved = Path(folder) / "figures.json"
        done = subprocess.run(  # noqa: S603  # ourselves
            tied_to_parent(sys.executable, "-P", "-m", "epp", *words, "--rounds", "1", "--save", str(saved)),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(tree.resolve()), str(tree.resolve() / "lab"))),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EppError(f"the bench failed in {tree}: {done.stderr[-1500:]}")
        return load(saved)
