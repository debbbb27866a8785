"""A replica's metrics in the Prometheus text format, under vLLM's names (source [E])."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp_lab.sim.job import EngineState

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
        """Return the exposition of this histogram."""
        totals = list(accumulate(self.counts))
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        return [
            f"# TYPE {name} histogram",
            *(f'{name}_bucket{{{labels},le="{le}"}} {n}' for le, n in zip(bounds, totals, strict=True)),
            f"{name}_sum{{{labels}}} {self.sum_s}",
            f"{name}_count{{{labels}}} {totals[-1]}",
        ]


def exposition(
    snapshot: EngineState,
    model: str,
    *,
    block_tokens: int,
    start_time_s: float,
    histograms: Mapping[str, Histogram],
    finished: Mapping[str, int],
) -> str:
    """Return the text of ``/metrics``.

    Args:
        snapshot: of the engine.
        model: name of the model.
        block_tokens: tokens per KV block.
        start_time_s: of the process.
        histograms: by name.
        finished: answers by the reason for which they ended.
    """
    counters = snapshot.counters
    labels = f'engine="0",model_name="{model}"'
    lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {start_time_s!r}"]
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
        lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {value!r}"]
    blocks = snapshot.capacity_tokens // block_tokens
    cache = f'block_size="{block_tokens}",enable_prefix_caching="True",num_gpu_blocks="{blocks}",engine="0"'
    lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{cache}}} 1"]
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, count in ({"stop": 0, "length": 0, "abort": counters.cancelled} | dict(finished)).items():
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}')
    for name, histogram in histograms.items():
        lines += histogram.lines(f"vllm:{name}", labels)
    return "\n".join(lines) + "\n"
