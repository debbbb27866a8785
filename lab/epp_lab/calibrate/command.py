"""`epp lab calibrate`: measure engines at their addresses, and write the fleet that a comparison takes."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from epp.apis.listed_models import parse_models
from epp.errors import EppError
from epp.signals.metrics_text import parse_metrics
from epp_lab.calibrate.fit import Fit, Measured, fit, probes
from epp_lab.compare.gateways import parse_gateways
from epp_lab.compare.load import LoadOptions, add_api_key, api_key_headers, run_load
from epp_lab.compare.plan import number_from
from epp_lab.compare.results import encode
from epp_lab.progress import progress
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.scenario import FleetSpec, ReplicaSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest

_CHECK_S = 10.0
_ROUND_TRIPS = 20
#: What an engine that does not tell is taken to have.
_UNTOLD_TOKENS = 131_072


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("urls", nargs="+", metavar="[NAME=]URL", help="engines with OpenAI's API; nothing else may use them")
    add("--model", help="model asked for (default: the first that the engine lists)")
    add(
        "--longest",
        type=number_from(512),
        default=4096,
        help="tokens of the longest prompt: as long as yours get (%(default)s)",
    )
    add("--rounds", type=number_from(1), default=3, help="how often all is measured (%(default)s)")
    add_api_key(add)
    add("--out", type=Path, default=Path("fleet.json"), help="file for the fleet (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write.

    Raises:
        EppError: an engine is not there, or refuses.
    """
    urls = parse_gateways(arguments.urls)
    headers = api_key_headers(arguments.bearer_token_file)
    engines = {name: asyncio.run(look(url, headers)) for name, url in urls.items()}
    replicas = []
    with progress(sys.stderr) as step:
        for name, engine in engines.items():
            longest = min(arguments.longest, engine.scheduler["context_tokens"] // 2)
            sent = probes(longest, arguments.rounds, int(time.time()))
            options = LoadOptions(
                base_url=urls[name],
                model=arguments.model or engine.model,
                headers=headers,
                extra_body={"ignore_eos": True},
                resend=True,
            )
            results = _drive(sent, options, partial(step, name))
            found = fit(sent, results, engine.network.rtt_ms)
            print(_text(name, engine, found))
            cls = found.engine_class(name, longest // 2, **engine.scheduler)
            replicas.append(ReplicaSpec(urlsplit(urls[name]).netloc, cls, engine.network, name))
    arguments.out.write_bytes(encode(FleetSpec(tuple(replicas))))
    print(f"Written: {arguments.out}; epp lab compare --fleet {arguments.out} --workload small-chat")
    return 0


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine says of itself, and how far away it is.

    Attributes:
        model: the first that it lists.
        network: the way to it.
        scheduler: fields of `EngineClass` that it says, or that its kind decides.
    """

    model: str
    network: NetworkPath
    scheduler: Mapping[str, Any]


async def look(url: str, headers: Mapping[str, str]) -> Engine:
    """Ask an engine what it is.

    Raises:
        EppError: it is not there, refuses, or lists no model.
    """
    url, timeout, times_s = f"{url.rstrip('/')}/v1/models", aiohttp.ClientTimeout(total=_CHECK_S), []
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            for _ in range(_ROUND_TRIPS):
                begun_s = time.perf_counter()
                async with client.get(url) as answer:
                    content = await answer.read()
                times_s.append(time.perf_counter() - begun_s)
                if answer.status != 200:
                    raise EppError(f"{url}: HTTP {answer.status}: {content[:300].decode(errors='replace')}")
            async with client.get(f"{url.removesuffix('/v1/models')}/metrics") as answer:
                sample = parse_metrics(await answer.read() if answer.status == 200 else b"")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise EppError(f"{url}: {type(error).__name__}: {error}") from error
    listed = next(iter(parse_models(content).items()), None)
    if listed is None:
        raise EppError(f"{url} lists no model")
    logs = np.log(times_s[1:])  # the first opened the connection
    # A round trip is two ways; a quantile, because one straggler is no jitter.
    jitter = 2**0.5 * float(np.percentile(logs, 84) - np.median(logs))
    stops_decodes = sample.engine == "sglang"
    scheduler = {
        "chunk_tokens": 8192 if stops_decodes else 2048,
        "mixed": not stops_decodes,
        "output_reserve_ratio": 0.7 if stops_decodes else 0.0,
        "kv_capacity_tokens": sample.kv_capacity_tokens or _UNTOLD_TOKENS,
        "context_tokens": listed[1].context_tokens or _UNTOLD_TOKENS,
    }
    return Engine(listed[0], NetworkPath(1e3 * float(np.exp(np.median(logs))), jitter, 0.0), scheduler)


def _drive(
    requests: Sequence[TraceRequest], options: LoadOptions, step: Callable[[int, int], None]
) -> list[RequestResult]:
    """Send the load.

    Raises:
        EppError: the first error of the engine.
    """
    done = count(1)

    def on_result(result: RequestResult) -> None:
        if result.error:
            raise EppError(f"{options.base_url}: {result.error}")
        step(next(done), len(requests))

    try:
        return asyncio.run(run_load(requests, options, on_result=on_result))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _text(name: str, engine: Engine, found: Measured) -> str:
    """Describe the fit of an engine."""

    def terms(fit: Fit) -> list[str]:
        pairs = zip(fit.values, fit.margins, strict=True)
        quality = f"R2 {fit.r2:.3f}, error {fit.error:.1%}, {fit.samples} samples"
        return [*(f"{value:.4g} ±{margin:.2g}" for value, margin in pairs), quality]

    constant, prompt, uncached, ttft_quality = terms(found.ttft)
    *levels, context, prefill, step_quality = terms(found.step)
    steps = ", ".join(f"{level} ({batch})" for batch, level in zip(found.batches, levels, strict=True))
    cache = "a prefix cache" if found.caches else "no prefix cache"
    return (
        f"{name}: {engine.model}, round trip {engine.network.rtt_ms:.3g} ms, {cache}, "
        f"{found.peak} or more at once\n"
        f"  TTFT ms = {constant} + {prompt} a token + {uncached} an uncached token; {ttft_quality}\n"
        f"  ms a token (batch) = {steps} + {context} a token of context\n"
        f"  + {prefill} a prefill beside; {step_quality}"
    )
