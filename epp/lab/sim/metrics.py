"""A replica's metrics in the Prometheus text format, under vLLM's and SGLang's names.

Pure text. Names: source [E] and source [G].
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.sim.job import EngineState

ENGINES = ("vllm", "sglang", "both")
_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)


@dataclass(slots=True)
class Histogram:
    """Seconds, in fixed buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """The exposition of this histogram."""
        totals = list(accumulate(self.counts))
        bounds = [str(bound) for bound in _BUCKETS_S] + ["+Inf"]
        return [
            f"# HELP {name} Seconds.",
            f"# TYPE {name} histogram",
            *(
                f'{name}_bucket{{{labels},le="{bound}"}} {count}'
                for bound, count in zip(bounds, totals, strict=True)
            ),
            f"{name}_sum{{{labels}}} {self.sum_s}",
            f"{name}_count{{{labels}}} {totals[-1]}",
        ]


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that one exposition shows."""

    snapshot: EngineState
    model: str
    block_tokens: int
    start_time_s: float
    tokens_per_s: float
    ttft: Histogram
    e2e: Histogram
    finished: Mapping[str, int]  # answers by the reason for which they ended


def exposition(reading: Reading, engine: str) -> str:
    """The text of ``/metrics``: the names of ``vllm``, of ``sglang``, or of ``both``."""
    lines = _sample("process_start_time_seconds", "gauge", "", reading.start_time_s)
    if engine in ("vllm", "both"):
        lines += _vllm(reading)
    if engine in ("sglang", "both"):
        lines += _sglang(reading)
    return "\n".join(lines) + "\n"


def _sample(name: str, kind: str, labels: str, value: float) -> list[str]:
    braces = f"{{{labels}}}" if labels else ""
    return [
        f"# HELP {name} See the engine's documentation.",
        f"# TYPE {name} {kind}",
        f"{name}{braces} {value!r}",
    ]


def _vllm(reading: Reading) -> list[str]:
    snapshot, counters = reading.snapshot, reading.snapshot.counters
    labels = f'engine="0",model_name="{reading.model}"'
    blocks = snapshot.capacity_tokens // reading.block_tokens
    lines: list[str] = []
    for name, kind, value in (
        ("num_requests_running", "gauge", snapshot.running),
        ("num_requests_waiting", "gauge", snapshot.arriving + snapshot.waiting),
        ("kv_cache_usage_perc", "gauge", snapshot.kv_usage),
        ("num_preemptions_total", "counter", counters.preemptions),
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("generation_tokens_total", "counter", counters.generated_tokens),
        ("prefix_cache_queries_total", "counter", counters.prompt_tokens),
        ("prefix_cache_hits_total", "counter", counters.cached_tokens),
    ):
        lines += _sample(f"vllm:{name}", kind, labels, value)
    cache = f'block_size="{reading.block_tokens}",enable_prefix_caching="True",num_gpu_blocks="{blocks}"'
    lines += _sample("vllm:cache_config_info", "gauge", f'{cache},engine="0"', 1)
    name = "vllm:request_success_total"
    lines += _sample(name, "counter", f'{labels},finished_reason="abort"', counters.cancelled)
    for reason in ("stop", "length"):
        lines.append(f'{name}{{{labels},finished_reason="{reason}"}} {reading.finished.get(reason, 0)}')
    lines += reading.ttft.lines("vllm:time_to_first_token_seconds", labels)
    lines += reading.e2e.lines("vllm:e2e_request_latency_seconds", labels)
    return lines


def _sglang(reading: Reading) -> list[str]:
    snapshot, counters = reading.snapshot, reading.snapshot.counters
    labels = f'engine_type="unified",model_name="{reading.model}",pp_rank="0",tp_rank="0"'
    pages = snapshot.capacity_tokens // reading.block_tokens
    hit_rate = counters.cached_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0
    lines: list[str] = []
    for name, kind, value in (
        ("num_running_reqs", "gauge", snapshot.running),
        ("num_queue_reqs", "gauge", snapshot.arriving + snapshot.waiting),
        ("num_used_tokens", "gauge", snapshot.held_tokens),
        ("token_usage", "gauge", snapshot.kv_usage),
        ("max_total_num_tokens", "gauge", snapshot.capacity_tokens),
        ("cache_hit_rate", "gauge", hit_rate),
        ("gen_throughput", "gauge", reading.tokens_per_s),
        ("num_retracted_reqs", "gauge", counters.preemptions),
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("cached_tokens_total", "counter", counters.cached_tokens),
        ("generation_tokens_total", "counter", counters.generated_tokens),
        ("num_requests_total", "counter", counters.submitted),
    ):
        lines += _sample(f"sglang:{name}", kind, labels, value)
    cache = f'num_pages="{pages}",page_size="{reading.block_tokens}"'
    lines += _sample("sglang:cache_config_info", "gauge", f"{cache},{labels}", 1)
    lines += reading.ttft.lines("sglang:time_to_first_token_seconds", labels)
    lines += reading.e2e.lines("sglang:e2e_request_latency_seconds", labels)
    return lines
