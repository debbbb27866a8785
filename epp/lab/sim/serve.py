"""The command ``epp sim serve``: one or several simulated replicas in one process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from epp.errors import ConfigError
from epp.lab.sim.a100 import A100_MODELS
from epp.lab.sim.engine_class import ENGINE_CLASSES
from epp.lab.sim.http import SimConfig, SimReplica
from epp.lab.sim.lookup import Lookup, lookups
from epp.lab.sim.metrics import ENGINES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping


CLASSES = {**ENGINE_CLASSES, **{cls.name: cls for cls in A100_MODELS}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port of a single replica, 0 for a free one (%(default)s)"
    )
    parser.add_argument("--name", default="sim", help="name in x-served-by (%(default)s)")
    parser.add_argument(
        "--engine-class", default="l40s-x2", choices=sorted(CLASSES), metavar="CLASS",
        help=f"how fast it is, one of {', '.join(sorted(CLASSES))} (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--region-rtt-ms", type=float, default=0.0, help="round trip to the replica's region (%(default)g)"
    )
    parser.add_argument("--slow-start", action="store_true", help="large bodies cost round trips while cold")
    parser.add_argument("--model", action="append", help="model name served; repeatable (default: sim-model)")
    parser.add_argument(
        "--engine", default="both", choices=ENGINES, help="whose metric names to expose (%(default)s)"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=128,
        help="how long answers are that the request's own limit does not cut (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--block-tokens", type=int, default=16, help="tokens per KV block (%(default)s)")
    parser.add_argument("--no-cached-tokens", action="store_true", help="leave cached_tokens out of usage")
    parser.add_argument(
        "--accuracy",
        type=Path,
        help="a capability file: how often each model is right in key-value lookups; others are always wrong",
    )
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="name=N,port=P,rtt_ms=R,class=C,model=M",
        help="one of several replicas, repeatable; what it leaves out is taken from the options above",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    try:
        configs = replica_configs(args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(configs))
    except (OSError, UnicodeError) as error:  # the latter of a host that is no name
        print(f"cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


def replica_configs(args: argparse.Namespace) -> list[SimConfig]:
    """What to serve.

    Raises:
        ConfigError: an option is wrong; names it.
    """
    specs = [_parse_replica(text) for text in args.replica] or [{}]
    if len(specs) > 1 and any("port" not in spec for spec in specs) and args.port != 0:
        raise ConfigError(
            "--replica", "port", "missing for one of several replicas", "add port=P, or --port 0"
        )
    names = [spec.get("name", args.name) for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError("--replica", "name", f"{twice[0]!r} is given twice", "add name=N to each")
    known = lookups(args.accuracy) if args.accuracy else None
    configs = []
    for spec in specs:
        try:
            configs.append(_config(args, spec, known))
        except ValueError as error:
            raise ConfigError("command line", "", str(error)) from None
    return configs


def _config(
    args: argparse.Namespace, spec: Mapping[str, str], known: Mapping[str, Lookup] | None
) -> SimConfig:
    models = (spec["model"],) if "model" in spec else tuple(args.model or ("sim-model",))
    return SimConfig(
        name=spec.get("name", args.name),
        host=args.host,
        port=int(spec.get("port", args.port)),
        engine_class=CLASSES[spec.get("class", args.engine_class)],
        models=models,
        lookup=None if known is None else known.get(models[0], Lookup(models[0], {})),
        rtt_ms=float(spec.get("rtt_ms", args.region_rtt_ms)),
        slow_start=args.slow_start,
        engine=args.engine,
        report_cached_tokens=not args.no_cached_tokens,
        answer_tokens=args.answer_tokens,
        block_tokens=args.block_tokens,
    )


_REPLICA_KEYS: dict[str, Callable[[str], object]] = {
    "name": str,
    "port": int,
    "rtt_ms": float,
    "class": CLASSES.__getitem__,
    "model": str,
}


def _parse_replica(text: str) -> dict[str, str]:
    spec: dict[str, str] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        check = _REPLICA_KEYS.get(key.strip())
        if check is None:
            raise ConfigError("--replica", key.strip(), "unknown key", f"use {', '.join(_REPLICA_KEYS)}")
        try:
            check(value.strip())
        except (ValueError, KeyError):
            fix = f"one of {', '.join(sorted(CLASSES))}" if key.strip() == "class" else "a number"
            raise ConfigError("--replica", key.strip(), f"{value.strip()!r} does not do", fix) from None
        spec[key.strip()] = value.strip()
    return spec


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
