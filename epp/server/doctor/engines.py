"""Checks of endpoints: metrics, clock, and whether answers tell what the cache held.

Asks each endpoint as the picker's probes do, with their credentials. Whether ``usage`` carries
``cached_tokens`` can only be seen in an answer: a prompt of some hundred tokens is sent twice, one token long
each answer, unless records have shown it already or requests are not wanted.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.prompt.usage import usage_from
from epp.server.doctor.fetch import ask_endpoint
from epp.server.doctor.models import check_models, listed_models
from epp.server.poll import target_of
from epp.server.resolve import Resolver
from epp.signals.metrics_text import parse_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.prompt.usage import Usage
    from epp.server.doctor.findings import Report
    from epp.server.poll import Target

#: A clock this far off disturbs Unix times in records beside the engine's start times and Envoy's reports.
SKEW_S = 2.0
#: Tokens in a prompt that fill at least one block of any engine's cache (SGLang 1, vLLM 16, some set 128).
PROMPT_WORDS = 400

_FLAGS = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}
_CACHING = {
    "vllm": "start vLLM without --no-enable-prefix-caching",
    "sglang": "start SGLang without --disable-radix-cache",
}


async def check_engines(
    report: Report,
    http: aiohttp.ClientSession,
    config: Config,
    specs: Mapping[str, EndpointSpec],
    *,
    known: frozenset[str],
    ask: bool,
) -> None:
    """Check every endpoint of the pool.

    Args:
        report: gets the findings.
        http: the client.
        config: where metrics are and with what credentials.
        specs: the pool.
        known: endpoints whose cached tokens have been seen already.
        ask: whether a small request may be sent to the others.
    """
    targets = await _targets(config, specs)
    await asyncio.gather(
        *(
            _check(report, http, config, targets[address], spec, ask=ask and address not in known)
            for address, spec in specs.items()
        )
    )
    if known:
        report.note("engine", f"records show cached_tokens of {', '.join(sorted(known))}")
    if not ask:
        report.note("engine", "no request was sent, so what usage carries was not looked at")


async def _targets(config: Config, specs: Mapping[str, EndpointSpec]) -> dict[str, Target]:
    """What is asked of each endpoint; a relay knows one with a host name by its address alone."""
    found = {
        address: target_of(address, spec, config.scrape, config.relays) for address, spec in specs.items()
    }
    relayed = [address for address, target in found.items() if target.through is not None]
    resolver = Resolver()
    resolver.set_pool(relayed)
    await asyncio.gather(*(resolver.resolve(address) for address in relayed))
    for address in relayed:
        found[address] = replace(found[address], base_url=f"http://{resolver.known_as(address)}")
    return found


async def _check(
    report: Report,
    http: aiohttp.ClientSession,
    config: Config,
    target: Target,
    spec: EndpointSpec,
    *,
    ask: bool,
) -> None:
    address = target.address
    answer = await ask_endpoint(http, target, config.scrape.path)
    engine = ""
    if answer.status != 200:
        said = f"status {answer.status}" if answer.status else answer.text
        report.warning(
            "engine",
            f"no metrics from {address}{config.scrape.path}: {said}",
            "its queue, cache usage, cache size and restarts are unknown",
            "set scrape.path, and ca_file or bearer_token_file of the endpoint; or run this at the picker",
        )
    else:
        sample = parse_metrics(answer.body)
        engine = sample.engine
        if not engine:
            report.warning(
                "engine",
                f"the metrics of {address} are of no engine that is known here",
                "its queue and cache usage are unknown",
                "vLLM, SGLang, TensorRT-LLM and Triton are read; SGLang needs --enable-metrics",
            )
        elif sample.kv_capacity_tokens is None and spec.kv_capacity_tokens is None:
            report.warning(
                "engine",
                f"{address} does not tell how many tokens its KV cache holds",
                f"the prefix index assumes {config.prefix.capacity_tokens:,}",
                "state kv_capacity_tokens of the endpoint",
            )
        else:
            report.note(
                "engine", f"{address}: metrics of {engine}, {sample.kv_capacity_tokens or '?'} KV tokens"
            )
    if answer.skew_s is not None and abs(answer.skew_s) > SKEW_S + answer.skew_error_s:
        report.warning(
            "clock",
            f"the clock of {address} is {answer.skew_s:+.1f} s from the one here",
            "times in records, start times of engines and reports of Envoy do not fit together",
            "run NTP or chrony on both",
        )
    listed = await listed_models(http, target)
    check_models(report, address, spec, listed)
    if ask:
        await _ask(report, http, target, _model(spec, listed), engine)


async def _ask(
    report: Report, http: aiohttp.ClientSession, target: Target, model: str | None, engine: str
) -> None:
    if model is None:
        report.note("engine", f"{target.address} names no model, so no request was sent")
        return
    words = " ".join(["doctor", secrets.token_hex(8), *["one two three four five"] * (PROMPT_WORDS // 5)])
    body = {"model": model, "messages": [{"role": "user", "content": words}], "max_tokens": 1}
    seen: list[Usage] = []
    for _ in range(2):
        answer = await ask_endpoint(http, target, "/v1/chat/completions", body=body)
        fields = answer.json()
        if answer.status != 200 or not isinstance(fields, dict):
            said = f"status {answer.status}" if answer.status else answer.text
            report.note("engine", f"{target.address} did not answer a small chat request ({said})")
            return
        seen.append(usage_from(fields.get("usage")))
    _judge(report, target.address, engine, seen)


def _judge(report: Report, address: str, engine: str, seen: list[Usage]) -> None:
    if seen[1].prompt_tokens is None:
        report.warning(
            "engine",
            f"answers of {address} carry no usage",
            "tokens are estimated only, and estimates are never corrected",
            "turn usage on in the engine",
        )
    elif seen[1].cached_tokens is None:
        report.warning(
            "engine",
            f"usage of {address} carries no cached_tokens",
            "what the prefix index believes is never confirmed or corrected",
            _FLAGS.get(engine, "turn reporting of cached tokens on in the engine"),
        )
    elif seen[1].cached_tokens == 0:
        report.warning(
            "engine",
            f"{address} cached nothing of a prompt of {seen[1].prompt_tokens} tokens that it had just served",
            "prefix caching seems to be off, so sending a conversation back there saves nothing",
            _CACHING.get(engine, "turn prefix caching on in the engine"),
        )
    else:
        report.note(
            "engine",
            f"{address} cached {seen[1].cached_tokens} of {seen[1].prompt_tokens} tokens, and says so",
        )


def _model(spec: EndpointSpec, listed: list[str]) -> str | None:
    if spec.models:
        return spec.endpoint().served_name(next(iter(spec.models)))
    return listed[0] if listed else None
