"""The command ``epp lab sim``: one or several simulated replicas in one process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from epp.errors import ConfigError
from epp_lab.sim.engine_class import A100_MODELS, ENGINE_CLASSES
from epp_lab.sim.http import SimConfig, SimReplica
from epp_lab.sim.lookup import Lookup, lookups

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


CLASSES = {**ENGINE_CLASSES, **{cls.name: cls for cls in A100_MODELS}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--model", default="sim-model", help="model name served (%(default)s)")
    add("--answer-tokens", type=int, default=128, help="length of answers that no limit cuts (%(default)s)")
    add(
        "--accuracy",
        type=Path,
        help="a capability file: how often each model is right in key-value lookups; others are always wrong",
    )
    add(
        "--replica",
        action="append",
        required=True,
        metavar="name=N,port=P,rtt_ms=R,class=C,model=M,kv_tokens=T",
        help=f"a replica, repeatable; by default on a free port, with rtt_ms=0, of class l40s-x2 and "
        f"its KV cache; "
        f"classes: {', '.join(sorted(CLASSES))}",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    configs = replica_configs(args)
    try:
        uvloop.run(_serve(configs))
    except (OSError, UnicodeError) as error:  # the latter of a host that is no name
        print(f"cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


def replica_configs(args: argparse.Namespace) -> list[SimConfig]:
    """Return what to serve.

    Raises:
        ConfigError: an option is wrong; names it.
    """
    known = lookups(args.accuracy) if args.accuracy else None
    configs = [_config(args, text, known) for text in args.replica]
    names = [config.name for config in configs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError("--replica", "name", f"{twice[0]!r} is given twice", "add name=N to each")
    return configs


def _config(args: argparse.Namespace, text: str, known: Mapping[str, Lookup] | None) -> SimConfig:
    spec = {"name": "sim", "port": "0", "rtt_ms": "0", "class": "l40s-x2"}
    spec |= {"model": args.model, "kv_tokens": "0"}
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key.strip() not in spec:
            raise ConfigError("--replica", key.strip(), "unknown key", f"use {', '.join(spec)}")
        spec[key.strip()] = value.strip()
    model, cls = spec["model"], CLASSES.get(spec["class"])
    if cls is None:
        raise ConfigError(
            "--replica", "class", f"unknown class {spec['class']!r}", f"one of {', '.join(CLASSES)}"
        )
    try:
        if kv_tokens := int(spec["kv_tokens"]):
            cls = replace(cls, kv_capacity_tokens=kv_tokens)
        return SimConfig(
            name=spec["name"],
            host=args.host,
            port=int(spec["port"]),
            engine_class=cls,
            models=(model,),
            lookup=None if known is None else known.get(model, Lookup(model, {})),
            rtt_ms=float(spec["rtt_ms"]),
            answer_tokens=args.answer_tokens,
        )
    except ValueError as error:
        raise ConfigError("--replica", text, str(error)) from None


async def _serve(configs: list[SimConfig]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for config in configs:
            replica = await stack.enter_async_context(SimReplica(config))
            print(
                f"{config.name}: {replica.url} class={config.engine_class.name} rtt_ms={config.rtt_ms:g} "
                f"models={','.join(config.models)}",
                flush=True,
            )
        await stop.wait()
