"""Engine metrics from Prometheus exposition text: the dozen numbers wanted, out of thousands of lines.

Owns the names that vLLM, SGLang and TensorRT-LLM use and how their series add up. A general parser builds
every histogram bucket of every family; this one looks at a line only when its first bytes name something
wanted. Text comes from the network: bytes and line length are bounded, whatever does not read is skipped, and
nothing raises.

Series of one name are first reduced over shards of the same scheduler (labels such as ``tp_rank``: each shard
tells the same number, the largest counts) and then over schedulers (data-parallel ranks, models): counts and
capacities add up, shares are averaged.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Enough for the largest exposition of a large engine, several times over.
MAX_BYTES = 4 * 1024 * 1024
#: Longest line looked at; info metrics with a whole configuration in their labels take a few thousand.
MAX_LINE_BYTES = 16 * 1024
#: Series kept per name; an engine has a handful of ranks.
MAX_SERIES = 1024

_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)')
_SHARDS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank", b"ep_rank"})

_Labels = dict[bytes, bytes]
_Series = tuple[_Labels, float]


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What one scrape tells; None is unknown.

    Attributes:
        engine: ``vllm``, ``sglang``, ``trtllm``, ``triton``, or ``""`` when nothing was recognised.
        running: requests in the batch.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use, 0..1.
        kv_capacity_tokens: size of the KV cache.
        process_start_time_s: Unix time at which the process started.
        prompt_tokens_total: prompt tokens so far.
        generation_tokens_total: generated tokens so far.
        prefix_queries_total: tokens looked up in the prefix cache so far.
        prefix_hits_total: tokens found there so far.
        requests_total: requests finished so far.
    """

    engine: str = ""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    process_start_time_s: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    requests_total: float | None = None


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of one engine; of several for one meaning the first that is present counts.

    A name may select one series by a label: ``name{label=value}``. Capacity is one gauge, the product of two
    labels of an info metric, or the product of two gauges.
    """

    engine: str
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: tuple[str, ...]
    capacity: tuple[str, ...] = ()
    capacity_info: tuple[str, str, str] | None = None
    capacity_product: tuple[str, str] | None = None
    prompt_tokens: tuple[str, ...] = ()
    generation_tokens: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()


_ENGINES = (
    _Names(
        engine="vllm",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter before v1
        capacity_info=("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
        prompt_tokens=("vllm:prompt_tokens_total",),
        generation_tokens=("vllm:generation_tokens_total",),
        prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        requests=("vllm:request_success_total",),  # by the reason for which they finished
    ),
    _Names(
        engine="sglang",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_usage=("sglang:token_usage",),
        capacity=("sglang:max_total_num_tokens",),
        capacity_info=("sglang:cache_config_info", "page_size", "num_pages"),
        prompt_tokens=("sglang:prompt_tokens_total",),
        generation_tokens=("sglang:generation_tokens_total",),
        prefix_queries=("sglang:prompt_tokens_total",),  # every prompt token is looked up
        prefix_hits=("sglang:cached_tokens_total",),
        requests=("sglang:num_requests_total",),
    ),
    _Names(
        engine="trtllm",
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_usage=("trtllm_kv_cache_utilization",),
        capacity_product=("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"),
    ),
    _Names(
        engine="triton",
        running=("nv_trt_llm_request_metrics{request_type=scheduled}",),
        waiting=("nv_trt_llm_request_metrics{request_type=waiting}",),
        kv_usage=("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",),
        capacity_product=(
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ),
    ),
)
_START = "process_start_time_seconds"


def _wanted() -> frozenset[bytes]:
    names = {_START}
    for spec in _ENGINES:
        for group in (spec.running, spec.waiting, spec.kv_usage, spec.capacity, spec.prompt_tokens,
                      spec.generation_tokens, spec.prefix_queries, spec.prefix_hits,
                      spec.requests, spec.capacity_product or ()):  # fmt: skip
            names.update(group)
        if spec.capacity_info:
            names.add(spec.capacity_info[0])
    return frozenset(name.partition("{")[0].encode() for name in names)


_WANTED = _wanted()


def _pattern(names: frozenset[bytes]) -> re.Pattern[bytes]:
    """Finds the lines of these names. Names are grouped by engine, so that a line is refused early."""
    groups: dict[bytes, list[bytes]] = {}
    for name in sorted(names):
        stem = re.split(rb"(?<=[:_])", name, maxsplit=1)[0]
        groups.setdefault(stem, []).append(re.escape(name[len(stem) :]))
    choice = b"|".join(re.escape(stem) + b"(?:" + b"|".join(rest) + b")" for stem, rest in groups.items())
    return re.compile(rb"\n[ \t]*(" + choice + rb")(?=[ \t{])")


# One pass of the pattern engine over the text finds the candidate lines; Python sees no others.
_FIND = _pattern(_WANTED)


def parse_metrics(text: bytes) -> EngineSample:
    """The wanted numbers of an exposition (Prometheus text or OpenMetrics); never raises.

    Beyond `MAX_BYTES` the text is cut at the last full line; longer lines than `MAX_LINE_BYTES` are skipped.
    """
    if len(text) > MAX_BYTES:
        text = text[: text.rfind(b"\n", 0, MAX_BYTES) + 1]
    found: dict[str, list[_Series]] = {}
    text = b"\n" + text
    for match in _FIND.finditer(text):
        end = text.find(b"\n", match.end())
        end = len(text) if end < 0 else end
        series = found.setdefault(match[1].decode(), [])
        if end - match.start() <= MAX_LINE_BYTES and len(series) < MAX_SERIES:
            sample = _read(text[match.end() : end])
            if sample is not None:
                series.append(sample)
    start = _reduce(found, (_START,), max)
    for names in _ENGINES:
        if any(_select(found, name) for name in (*names.running, *names.waiting, *names.kv_usage)):
            return _sample(names, found, start)
    return EngineSample(process_start_time_s=start)


def _sample(names: _Names, found: dict[str, list[_Series]], start: float | None) -> EngineSample:
    usage = _reduce(found, names.kv_usage, _mean)
    return EngineSample(
        engine=names.engine,
        running=_reduce(found, names.running, sum),
        waiting=_reduce(found, names.waiting, sum),
        kv_usage=None if usage is None else min(usage, 1.0),
        kv_capacity_tokens=_capacity(names, found),
        process_start_time_s=start,
        prompt_tokens_total=_reduce(found, names.prompt_tokens, sum),
        generation_tokens_total=_reduce(found, names.generation_tokens, sum),
        prefix_queries_total=_reduce(found, names.prefix_queries, sum),
        prefix_hits_total=_reduce(found, names.prefix_hits, sum),
        requests_total=_reduce(found, names.requests, sum),
    )


def _capacity(names: _Names, found: dict[str, list[_Series]]) -> int | None:
    total = _reduce(found, names.capacity, sum)
    if total is None and names.capacity_info:
        metric, first, second = names.capacity_info
        sizes = [
            (labels, _number(labels.get(first.encode(), b"")) * _number(labels.get(second.encode(), b"")))
            for labels, _ in found.get(metric, ())
        ]
        total = _over_schedulers(sizes, sum)
    if total is None and names.capacity_product:
        block, count = (_by_scheduler(_select(found, name)) for name in names.capacity_product)
        products = [block[key] * count[key] for key in block.keys() & count.keys()]
        total = sum(products) if products else None
    return int(total) if total is not None and 1.0 <= total < math.inf else None


def _reduce(
    found: dict[str, list[_Series]], names: Iterable[str], combine: Callable[[Iterable[float]], float]
) -> float | None:
    """The first of the names that has a value, over shards and schedulers."""
    for name in names:
        value = _over_schedulers(_select(found, name), combine)
        if value is not None:
            return value
    return None


def _over_schedulers(series: Iterable[_Series], combine: Callable[[Iterable[float]], float]) -> float | None:
    values = _by_scheduler(series).values()
    value = combine(values) if values else math.nan
    return value if math.isfinite(value) else None


def _by_scheduler(series: Iterable[_Series]) -> dict[frozenset[tuple[bytes, bytes]], float]:
    """Largest value over the shards of each scheduler; what is no number of things is left out."""
    largest: dict[frozenset[tuple[bytes, bytes]], float] = {}
    for labels, value in series:
        if 0.0 <= value < math.inf:
            key = frozenset(item for item in labels.items() if item[0] not in _SHARDS)
            largest[key] = max(value, largest.get(key, 0.0))
    return largest


def _select(found: dict[str, list[_Series]], name: str) -> list[_Series]:
    """Series of ``name`` or ``name{label=value}``; the selecting label is taken off."""
    metric, _, selector = name.partition("{")
    series = found.get(metric, [])
    if not selector:
        return series
    label, value = (part.encode() for part in selector.rstrip("}").split("="))
    return [
        ({key: text for key, text in labels.items() if key != label}, number)
        for labels, number in series
        if labels.get(label) == value
    ]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _read(rest: bytes) -> _Series | None:
    """Labels and value of a line after its name; None when it does not read."""
    labels: _Labels = {}
    rest = rest.lstrip(b" \t")
    if rest.startswith(b"{"):
        at = 1
        while (pair := _LABEL.match(rest, at)) is not None:
            labels[pair[1]] = pair[2]
            at = pair.end()
            if not pair[3]:
                break
        rest = rest[at:].lstrip(b" \t")
        if not rest.startswith(b"}"):
            return None
        rest = rest[1:]
    words = rest.split(None, 1)  # a timestamp or an exemplar may follow
    return (labels, _number(words[0])) if words else None


def _number(text: bytes) -> float:
    """A decimal number, NaN for anything else."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan
