"""`epp lab calibrate`: measure engines at their addresses, and write the fleet that a comparison takes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np

from epp.errors import EppError
from epp.lab.calibrate.fit import Measured, fit, probes
from epp.lab.compare.gateways import parse_gateways
from epp.lab.compare.load import LoadOptions, run_load
from epp.lab.compare.plan import number_from
from epp.lab.compare.report import progress
from epp.lab.compare.results import encode
from epp.lab.sim.network import NetworkPath
from epp.lab.sim.scenario import FleetSpec, ReplicaSpec
from epp.records.files import DAMAGED
from epp.signals.metrics_text import EngineSample, parse_metrics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from epp.lab.compare.load import RequestResult
    from epp.lab.compare.stats import Floats

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
    add("--seed", type=number_from(0), help="of the prompts (default: the time, so that they are new)")
    add("--bearer-token-file", type=Path, help="holds the API key (else OPENAI_API_KEY in the environment)")
    add("--out", type=Path, default=Path("fleet.json"), help="file for the fleet (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write.

    Raises:
        EppError: an engine is not there, or refuses.
    """
    urls = parse_gateways(arguments.urls)
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    key: Path | None = arguments.bearer_token_file
    token = key.read_text().strip() if key else os.environ.get("OPENAI_API_KEY", "-")
    headers = {"authorization": f"Bearer {token}"}
    engines = {name: asyncio.run(look(url, headers)) for name, url in urls.items()}
    replicas = []
    with progress(sys.stderr) as step:
        for name, engine in engines.items():
            longest = min(arguments.longest, engine.context_tokens // 2)
            sent = probes(longest, arguments.rounds, seed)
            options = LoadOptions(
                base_url=urls[name],
                model=arguments.model or engine.model,
                headers=headers,
                extra_body={"ignore_eos": True},
            )

            def count(done: int, name: str = name, total: int = len(sent)) -> None:
                step(name, done, total)

            results = _drive([probe.request for probe in sent], options, name, count)
            found = fit(sent, results, engine.rtt_ms)
            print(_text(name, engine, found))
            address = urlsplit(urls[name]).netloc
            cls = found.engine_class(name, longest // 2, **engine.scheduler)
            replicas.append(ReplicaSpec(address, cls, NetworkPath(engine.rtt_ms, engine.jitter, 0.0), name))
    arguments.out.write_bytes(encode(FleetSpec(tuple(replicas))))
    print(f"Written: {arguments.out}; epp lab compare --fleet {arguments.out} --workload small-chat")
    return 0


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine says of itself, and how far away it is.

    Attributes:
        model: the first that it lists.
        context_tokens: longest prompt and answer.
        sample: of its metrics, empty where it has none.
        round_trips_ms: of its list of models, over a warm connection.
    """

    model: str
    context_tokens: int
    sample: EngineSample
    round_trips_ms: Floats

    @property
    def rtt_ms(self) -> float:
        """Warm round trip."""
        return float(np.median(self.round_trips_ms))

    @property
    def jitter(self) -> float:
        """Standard deviation of the logarithm of one way, of which a round trip has two."""
        logs = np.log(self.round_trips_ms)
        # A quantile, because one straggler is no jitter.
        return float(2**0.5 * max(0.0, np.percentile(logs, 84) - np.median(logs)))

    @property
    def scheduler(self) -> dict[str, Any]:
        """Fields of `EngineClass` that its kind decides: SGLang stops decodes for prompts, others do not."""
        is_sglang = self.sample.engine == "sglang"
        return {
            "chunk_tokens": 8192 if is_sglang else 2048,
            "mixed": not is_sglang,
            "output_reserve_ratio": 0.7 if is_sglang else 0.0,
            "kv_capacity_tokens": self.sample.kv_capacity_tokens or _UNTOLD_TOKENS,
            "context_tokens": self.context_tokens,
        }


async def look(url: str, headers: Mapping[str, str]) -> Engine:
    """Ask an engine what it is.

    Raises:
        EppError: it is not there, refuses, or lists no model.
    """
    base, timeout = url.rstrip("/"), aiohttp.ClientTimeout(total=_CHECK_S)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            times_s = []
            for _ in range(_ROUND_TRIPS + 1):  # the first opens the connection
                begun_s = time.perf_counter()
                async with client.get(f"{base}/v1/models") as answer:
                    content = await answer.read()
                times_s.append(time.perf_counter() - begun_s)
                if answer.status != 200:
                    raise EppError(f"{base}/v1/models: HTTP {answer.status}: {content[:300]!r}")
            async with client.get(f"{base}/metrics") as answer:
                text = await answer.read() if answer.status == 200 else b""
        model = msgspec.json.decode(content)["data"][0]
        context_tokens = model.get("max_model_len") or _UNTOLD_TOKENS
        sample = parse_metrics(text)
        return Engine(model["id"], context_tokens, sample, np.array(times_s[1:]) * 1e3)
    except (
        aiohttp.ClientError,
        OSError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        *DAMAGED,
    ) as error:
        raise EppError(f"{base}/v1/models: {type(error).__name__}: {error}") from error


def _drive(
    requests: list[Any], options: LoadOptions, name: str, count: Callable[[int], None]
) -> list[RequestResult]:
    """Send the load.

    Raises:
        EppError: the first error of the engine.
    """
    done = 0

    def on_result(result: RequestResult) -> None:
        nonlocal done
        if result.error:
            raise EppError(f"{name}: {options.base_url}: {result.error}")
        done += 1
        count(done)

    try:
        return asyncio.run(run_load(requests, options, on_result=on_result))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _text(name: str, engine: Engine, found: Measured) -> str:
    """Describe the fit of an engine."""

    def terms(values: Floats, margins: Floats) -> list[str]:
        return [f"{value:.4g} ±{margin:.2g}" for value, margin in zip(values, margins, strict=True)]

    constant, prompt, uncached = terms(found.ttft.values, found.ttft.margins)
    *levels, context = terms(found.step.values, found.step.margins)
    steps = ", ".join(f"{level} ({batch})" for batch, level in zip(found.batches, levels, strict=True))
    head = f"{name}: {engine.model}, round trip {engine.rtt_ms:.3g} ms"
    cache = "a prefix cache" if found.caches else "no prefix cache"
    return (
        f"{head}, {cache}, {found.peak} or more at once\n"
        f"  TTFT ms = {constant} + {prompt} a token + {uncached} an uncached token; "
        f"R2 {found.ttft.r2:.3f}, {found.ttft.samples} samples\n"
        f"  ms a token (batch) = {steps} + {context} a token of context; "
        f"R2 {found.step.r2:.3f}, {found.step.samples} samples"
    )
