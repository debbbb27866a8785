"""Checks of engines: metrics, names of models, clocks, and whether answers tell what the cache held. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.apis.usage import usage_from
from epp.ops.doctor.context import Engine, NotFetchedError, error, note, warning
from epp.signals.metrics_text import parse_metrics

if TYPE_CHECKING:
    from epp.apis.usage import Usage
    from epp.ops.doctor.context import Context, Finding, Findings

#: A clock this far off disturbs Unix times in records beside the engine's start times and Envoy's reports.
SKEW_S = 2.0
#: How many of an engine's own names a finding lists.
_NAMED = 5
_TELL_CACHED = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}
_CACHE = {
    "vllm": "start vLLM without --no-enable-prefix-caching",
    "sglang": "start SGLang without --disable-radix-cache",
}


def metrics(context: Context) -> Findings:
    """Check that the metrics of each engine can be read and tell its cache's size."""
    for engine in context.engines:
        address = engine.address
        sample = parse_metrics(engine.metrics.body)
        if engine.metrics.status != 200:
            yield warning(
                f"no metrics from {address}{engine.spec.metrics_path or context.config.scrape.path}:"
                f" {engine.metrics.problem}",
                "its queue, cache usage, cache size and restarts are unknown",
                "set metrics_path, ca_file or bearer_token_file of the endpoint; or run this at the picker",
            )
        elif not sample.engine:
            yield warning(
                f"the metrics of {address} are of no engine that is known here",
                "its queue and cache usage are unknown",
                "vLLM, SGLang, TensorRT-LLM, Triton, TGI, LMDeploy, Dynamo and llama.cpp are read; SGLang"
                " needs --enable-metrics, llama.cpp --metrics, TensorRT-LLM enable_iter_perf_stats; TGI and"
                " TensorRT-LLM show none before their first request",
            )
        elif sample.kv_capacity_tokens is None and engine.spec.kv_capacity_tokens is None:
            yield warning(
                f"{address} does not tell how many tokens its KV cache holds",
                f"the prefix index assumes {context.config.prefix.capacity_tokens:,}",
                "state kv_capacity_tokens of the endpoint",
            )
        else:
            yield note(f"{address}: metrics of {sample.engine}, {sample.kv_capacity_tokens or '?'} KV tokens")


def clocks(context: Context) -> Findings:
    """Check the clocks of picker and engines against the one here."""
    answers = {engine.address: engine.metrics for engine in context.engines}
    if context.ready is not None:
        answers["the picker"] = context.ready
    for who, answer in answers.items():
        if answer.skew_s is not None and abs(answer.skew_s) > SKEW_S + answer.skew_error_s:
            yield warning(
                f"the clock of {who} is {answer.skew_s:+.1f} s from the one here",
                "times in records, start times of engines and reports of Envoy do not fit together",
                "run NTP or chrony on both",
            )


def models(context: Context) -> Findings:
    """Check that engines serve the names under which their endpoints ask them; they answer 404 to others."""
    for engine in context.engines:
        endpoint = engine.spec.endpoint()
        if not endpoint.models or not engine.listed:
            continue
        unknown = sorted(name for name in endpoint.models if endpoint.served_name(name) not in engine.listed)
        if not unknown:
            yield note(f"{engine.address} serves {', '.join(sorted(endpoint.models))}")
            continue
        key = "adapters" if unknown[0] in endpoint.adapters else "models"
        yield error(
            f"{engine.address} does not serve"
            f" {', '.join(repr(endpoint.served_name(name)) for name in unknown)}",
            f"requests for {', '.join(unknown)} that go there fail",
            f"in the endpoints file, map the public name to the engine's: {key}: {{{unknown[0]}: NAME}},"
            f" NAME being one of {', '.join(engine.listed[:_NAMED])}",
        )


def caching(context: Context) -> Findings:
    """Check by a prompt sent twice that engines cache prefixes, and tell how much of one they had."""
    known = sorted(context.traffic.cached_known & context.specs.keys()) if context.traffic else []
    if known:
        yield note(f"records show cached_tokens of {', '.join(known)}")
    if not context.requests_sent:
        yield note("no request was sent, so what usage carries was not checked")
        raise NotFetchedError
    for engine in context.engines:
        if engine.address in known:
            continue
        if engine.model is None:
            yield note(f"{engine.address} names no model, so no request was sent")
            continue
        usages = []
        for answer in engine.chats:
            fields = answer.json()
            if answer.status != 200 or not isinstance(fields, dict):
                yield note(f"{engine.address} did not answer a small chat request ({answer.problem})")
                break
            usages.append(usage_from(fields.get("usage")))
        else:
            if usages:
                yield _cached(engine, usages[-1])


def _cached(engine: Engine, second: Usage) -> Finding:
    """Judge the usage of a prompt that the engine has just served."""
    address, kind = engine.address, parse_metrics(engine.metrics.body).engine
    if second.prompt_tokens is None:
        return warning(
            f"answers of {address} carry no usage",
            "tokens are estimated only, and estimates are never corrected",
            "turn usage on in the engine",
        )
    if second.cached_tokens is None:
        return warning(
            f"usage of {address} carries no cached_tokens",
            "what the prefix index believes is never confirmed or corrected",
            _TELL_CACHED.get(kind, "turn reporting of cached tokens on in the engine"),
        )
    if second.cached_tokens == 0:
        return warning(
            f"{address} cached nothing of a prompt of {second.prompt_tokens} tokens that it had just served",
            "prefix caching seems to be off, so sending a conversation back there saves nothing",
            _CACHE.get(kind, "turn prefix caching on in the engine"),
        )
    return note(f"{address} cached {second.cached_tokens} of {second.prompt_tokens} tokens, and says so")
