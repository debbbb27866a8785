"""What one scrape of an engine tells, and how its series add up to it.

Owns the names that vLLM, SGLang and TensorRT-LLM use and what they mean. Knows series by their labels alone
and no text: `epp.signals.metrics_text` reads that. What adds up to what is settled once for a list of series
(`Plan`), and then holds for any numbers that they have.

Series of one name are first reduced over shards of the same scheduler (labels such as ``tp_rank``: each shard
tells the same number, the largest counts) and then over schedulers (data-parallel ranks, models): counts and
capacities add up, shares are averaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Labels = dict[bytes, bytes]
    #: Positions of the shards of each scheduler.
    Groups = tuple[tuple[int, ...], ...]
    Combine = Callable[[Sequence[float]], float]

SHARDS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank", b"ep_rank"})


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
class EngineNames:
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


ENGINES = (
    EngineNames(
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
    EngineNames(
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
    EngineNames(
        engine="trtllm",
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_usage=("trtllm_kv_cache_utilization",),
        capacity_product=("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"),
    ),
    EngineNames(
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
START = "process_start_time_seconds"


def wanted() -> frozenset[bytes]:
    """Metric names that mean something here."""
    names = {START}
    for spec in ENGINES:
        for group in (spec.running, spec.waiting, spec.kv_usage, spec.capacity, spec.prompt_tokens,
                      spec.generation_tokens, spec.prefix_queries, spec.prefix_hits,
                      spec.requests, spec.capacity_product or ()):  # fmt: skip
            names.update(group)
        if spec.capacity_info:
            names.add(spec.capacity_info[0])
    return frozenset(name.partition("{")[0].encode() for name in names)


class Plan:
    """How numbers of a list of series add up.

    Args:
        series: name and labels of each.
    """

    def __init__(self, series: Iterable[tuple[str, Labels]]) -> None:
        self._found: dict[str, list[tuple[int, Labels]]] = {}
        for at, (name, labels) in enumerate(series):
            self._found.setdefault(name, []).append((at, labels))
        self._start = self._groups((START,))
        self._names: EngineNames | None = None
        for names in ENGINES:
            if self._groups((*names.running, *names.waiting, *names.kv_usage)):
                self._settle(names)
                break
        del self._found

    def _settle(self, names: EngineNames) -> None:
        """Which series mean what for this engine."""
        self._names = names
        self._kv_usage = self._groups(names.kv_usage)
        self._capacity = self._groups(names.capacity)
        self._told_capacity = self._capacity_of_labels(names)
        self._products: list[tuple[Groups, Groups]] = []
        if names.capacity_product:
            block, count = (self._by_scheduler(name) for name in names.capacity_product)
            self._products = [((block[key],), (count[key],)) for key in block if key in count]
        self._counts = [
            self._groups(group)
            for group in (names.running, names.waiting, names.prompt_tokens, names.generation_tokens,
                          names.prefix_queries, names.prefix_hits, names.requests)
        ]  # fmt: skip

    def sample(self, numbers: Sequence[float]) -> EngineSample:
        """What the series tell with these numbers, in the order of the series; NaN for what is no number."""
        start = _reduce(numbers, self._start, max)
        if self._names is None:
            return EngineSample(process_start_time_s=start)
        usage = _reduce(numbers, self._kv_usage, _mean)
        running, waiting, prompt, generation, queries, hits, requests = (
            _reduce(numbers, groups, sum) for groups in self._counts
        )
        return EngineSample(
            engine=self._names.engine,
            running=running,
            waiting=waiting,
            kv_usage=None if usage is None else min(usage, 1.0),
            kv_capacity_tokens=self._capacity_tokens(numbers),
            process_start_time_s=start,
            prompt_tokens_total=prompt,
            generation_tokens_total=generation,
            prefix_queries_total=queries,
            prefix_hits_total=hits,
            requests_total=requests,
        )

    def _capacity_tokens(self, numbers: Sequence[float]) -> int | None:
        total = _reduce(numbers, self._capacity, sum)
        if total is None:
            total = self._told_capacity
        if total is None:
            products = [
                block * count
                for one, other in self._products
                if (block := _over_schedulers(numbers, one, sum)) is not None
                and (count := _over_schedulers(numbers, other, sum)) is not None
            ]
            total = sum(products) if products else None
        return int(total) if total is not None and 1.0 <= total < math.inf else None

    def _capacity_of_labels(self, names: EngineNames) -> float | None:
        """Capacity as an info metric's labels tell it; its number says nothing."""
        if names.capacity_info is None:
            return None
        metric, first, second = names.capacity_info
        sizes = {
            at: number(labels.get(first.encode(), b"")) * number(labels.get(second.encode(), b""))
            for at, labels in self._found.get(metric, ())
        }
        told = [math.nan] * (max(sizes, default=-1) + 1)
        for at, size in sizes.items():
            told[at] = size
        return _reduce(told, self._groups((metric,)), sum)

    def _groups(self, names: Iterable[str]) -> list[Groups]:
        """Of each name that is there, the series by scheduler."""
        found = [tuple(self._by_scheduler(name).values()) for name in names]
        return [groups for groups in found if groups]

    def _by_scheduler(self, name: str) -> dict[frozenset[tuple[bytes, bytes]], tuple[int, ...]]:
        """Series of ``name`` or ``name{label=value}`` by scheduler; the selecting label is no part of it."""
        metric, _, selector = name.partition("{")
        label, _, value = selector.rstrip("}").encode().partition(b"=")
        groups: dict[frozenset[tuple[bytes, bytes]], tuple[int, ...]] = {}
        for at, labels in self._found.get(metric, ()):
            if label and labels.get(label) != value:
                continue
            key = frozenset(item for item in labels.items() if item[0] not in SHARDS and item[0] != label)
            groups[key] = (*groups.get(key, ()), at)
        return groups


def _reduce(numbers: Sequence[float], names: Iterable[Groups], combine: Combine) -> float | None:
    """The first of the names that has a value, over shards and schedulers."""
    for groups in names:
        value = _over_schedulers(numbers, groups, combine)
        if value is not None:
            return value
    return None


def _over_schedulers(numbers: Sequence[float], groups: Groups, combine: Combine) -> float | None:
    """The largest value of each scheduler's shards, combined; what is no number of things is left out."""
    values = []
    for group in groups:
        largest = -1.0
        for at in group:
            if largest < numbers[at] < math.inf:
                largest = numbers[at]
        if largest >= 0.0:
            values.append(largest)
    value = combine(values) if values else math.nan
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def number(text: bytes) -> float:
    """A decimal number, NaN for anything else."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan
