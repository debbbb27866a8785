"""One scrape of an engine: the names that engines use for their metrics, and how series add up.

Knows series by their labels and no text: `epp.signals.metrics_text` reads that. What adds up to what is
settled once for a list of series (`Plan`), and then holds for any numbers that they have.

Series of one name are first reduced over shards of the same scheduler (labels such as ``tp_rank``: each shard
shows the same number, the largest counts) and then over schedulers (data-parallel ranks, models): counts and
capacities add up, shares are averaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Labels = dict[bytes, bytes]
    #: Positions of the shards of each scheduler.
    Groups = tuple[tuple[int, ...], ...]
    Combine = Callable[[Sequence[float]], float]

SHARDS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank", b"ep_rank"})


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What one scrape shows; None is unknown.

    Attributes:
        engine: ``vllm``, ``sglang``, ``trtllm``, ``triton``, or ``""`` when nothing was recognised.
        running: requests in the batch.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use, 0..1.
        kv_capacity_tokens: size of the KV cache.
        process_start_time_s: Unix time at which the process started.
        prompt_tokens_total: prompt tokens so far.
        generation_tokens_total: generated tokens so far.
    """

    engine: str = ""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    process_start_time_s: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None


#: By engine and meaning, names of which the first that is present counts. A name may select one series by a
#: label: ``name{label=value}``. Capacity is one gauge, the product of two labels of an info metric (``info``:
#: metric, labels), or the product of two gauges (``product``).
ENGINES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter before v1
        "info": ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_usage": ("sglang:token_usage",),
        "capacity": ("sglang:max_total_num_tokens",),
        "info": ("sglang:cache_config_info", "page_size", "num_pages"),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
    },
    "trtllm": {
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "kv_usage": ("trtllm_kv_cache_utilization",),
        "product": ("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"),
    },
    "triton": {
        "running": ("nv_trt_llm_request_metrics{request_type=scheduled}",),
        "waiting": ("nv_trt_llm_request_metrics{request_type=waiting}",),
        "kv_usage": ("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",),
        "product": (
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ),
    },
}
START = "process_start_time_seconds"


def wanted() -> frozenset[bytes]:
    """Return the metric names that mean something here."""
    names = {START}
    for spec in ENGINES.values():
        for meaning, group in spec.items():
            names.update(group[:1] if meaning == "info" else group)
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
        self._engine, spec = "", dict[str, tuple[str, ...]]()
        for engine, names in ENGINES.items():
            if self._groups((*names["running"], *names["waiting"], *names["kv_usage"])):
                self._engine, spec = engine, dict(names)
                break
        self._kv_usage, self._capacity, *self._counts = (
            self._groups(spec.get(meaning, ()))
            for meaning in (
                "kv_usage",
                "capacity",
                "running",
                "waiting",
                "prompt_tokens",
                "generation_tokens",
            )
        )
        self._info_tokens = self._capacity_of_labels(*spec["info"]) if "info" in spec else None
        block, count = (self._by_scheduler(name) for name in spec.get("product", ("", "")))
        self._products = [((block[key],), (count[key],)) for key in block if key in count]
        del self._found

    def sample(self, numbers: Sequence[float]) -> EngineSample:
        """Add up numbers in the order of the series; NaN for what is no number."""
        usage = _reduce(numbers, self._kv_usage, _mean)
        running, waiting, prompt, generation = (_reduce(numbers, groups, sum) for groups in self._counts)
        return EngineSample(
            self._engine,
            running,
            waiting,
            None if usage is None else min(usage, 1.0),
            self._capacity_tokens(numbers),
            _reduce(numbers, self._start, max),
            prompt,
            generation,
        )

    def _capacity_tokens(self, numbers: Sequence[float]) -> int | None:
        total = _reduce(numbers, self._capacity, sum)
        if total is None:
            total = self._info_tokens
        if total is None:
            products = [
                block * count
                for one, other in self._products
                if (block := _over_schedulers(numbers, one, sum)) is not None
                and (count := _over_schedulers(numbers, other, sum)) is not None
            ]
            total = sum(products) if products else None
        return int(total) if total is not None and 1.0 <= total < math.inf else None

    def _capacity_of_labels(self, metric: str, first: str, second: str) -> float | None:
        """Multiply two labels of an info metric; its number says nothing."""
        sizes = dict[int, float]()
        for at, labels in self._found.get(metric, ()):
            sizes[at] = number(labels.get(first.encode(), b"")) * number(labels.get(second.encode(), b""))
        by_series = [sizes.get(at, math.nan) for at in range(max(sizes, default=-1) + 1)]
        return _reduce(by_series, self._groups((metric,)), sum)

    def _groups(self, names: Iterable[str]) -> list[Groups]:
        """Group the series of each name that is there by scheduler."""
        found = [tuple(self._by_scheduler(name).values()) for name in names]
        return [groups for groups in found if groups]

    def _by_scheduler(self, name: str) -> dict[frozenset[tuple[bytes, bytes]], tuple[int, ...]]:
        """Group the series of ``name`` or ``name{label=value}`` by scheduler."""
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
    """Return the value of the first name that has one, over shards and schedulers."""
    for groups in names:
        value = _over_schedulers(numbers, groups, combine)
        if value is not None:
            return value
    return None


def _over_schedulers(numbers: Sequence[float], groups: Groups, combine: Combine) -> float | None:
    """Combine the largest value of each scheduler's shards; what is no number of things is left out."""
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
    """Read a decimal number, NaN for anything else."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan
