"""Writes docs/metrics.md from the metrics themselves: ``python tools/gen_metrics_docs.py``.

Names, kinds, labels, buckets and help come from what a picker shows after one request of each kind, so the
page cannot say what is not there. A test compares the committed file with what this makes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from epp.config.reward_model import dump_reward_model
from epp.config.schema import Config, PolicySection
from epp.decide.picker import Ask, Picker, PickerSettings
from epp.decide.records import Outcome
from epp.decide.weights import WeightBook
from epp.policies.registry import create
from epp.policies.reward_model import RewardModel
from epp.prompt.types import MeasuredPrompt
from epp.prompt.usage import Usage
from epp.server.learning import Learning
from epp.server.metrics import Metrics, PickerCollector
from epp.server.metrics_hot import FamilyCollector
from epp.server.metrics_protocol import ProtocolMetrics
from epp.server.metrics_requests import MAX_PRIORITIES, MAX_STRANGE_MODELS
from epp.server.observation import families as observation_families
from epp.signals.duration import foretell
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from epp.signals.paths import Travelled
from epp.signals.prefix_index import PrefixIndex
from epp.tuner.plan import Plan, Split, render_plan

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

HEAD = f"""<!-- Written by tools/gen_metrics_docs.py from the metrics themselves; a test keeps it fresh. -->

# Metrics

`GET /metrics` on `listen.http`. `llm_d_epp_*` are llm-d's names, where the meaning is the same, so that its
dashboards and alerts work; `epp_*` are ours. A dashboard and alert rules for Prometheus are in
`deploy/grafana/` and `deploy/prometheus/`.

Labels are bounded. `model_name` comes from clients: models of the endpoints file or the cluster, those
that engines list in `/v1/models`, and the first {MAX_STRANGE_MODELS} others (of at most 128 characters)
become labels; the rest are `other`. `target_model_name` equals it while models are not
rewritten. `priority` is that of the request's InferenceObjective, 0 without one, and `other` after
{MAX_PRIORITIES} different ones; the two `inflight` gauges have all requests under 0. `fairness_id` has
llm-d's default: nothing is queued, so nobody takes turns. `name` and `inference_pool` are
the InferencePool's, `default` without one. Endpoints are addresses of the pool; when one leaves, its series
go, and what ends later on it is counted under `gone`. Nothing else that a client sends becomes a label.

Some things that the names do not tell:

* **Absent is not zero.** Engines tell token counts only where they are asked to, cached tokens only where
  they were started to, and the first token is known only where Envoy reports it. The histograms count what
  was told: compare their `_count` with that of `llm_d_epp_request_duration_seconds`, or look at
  `epp_usage_total`.
* `llm_d_epp_request_input_tokens` falls back on the picker's own count where the engine tells none.
* `llm_d_epp_request_streaming_itl_seconds` has one observation a request, the mean over its answer; llm-d's
  has one a token, for which every token has to pass the picker.
* `epp_uncached_prediction_error_tokens`: `too_few` when the engine had to prefill more than was expected
  (the prefix index believed in a cache that was gone), `too_many` when it had more cached than was known.
  Both are in the engine's tokens, so that an error in counting the prompt is not one in foretelling the
  cache.
* `epp_ttft_prediction_ratio` is what was seen over what was foretold, for streamed answers: above 1 is
  later than foretold. Foretold is the round trip plus a straight line through the endpoint's last fifty
  requests over the uncached tokens that stood before the first token. It decides nothing; it tells how much
  of TTFT the picker's signals explain.
* `promtool check metrics` takes the `_d_` in llm-d's prefix for the unit of days and says so for each of
  its names. It has nothing to say about ours.
* `epp_learned_*` and `epp_reward_model_*` are there where `lodestar` decides or stands in shadow, and
  `epp_shadow_*` where `shadow` names policies (docs/lodestar.md).

| name | type | labels | meaning |
|---|---|---|---|
"""


@dataclass
class _Receiver:
    received: int = 1
    malformed: int = 0
    failed: int = 0


class _Clock:
    def mono_s(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return 0.0


def _model() -> RewardModel:
    return RewardModel(
        features=("rtt_ms",),
        classes=(),
        mean=np.zeros(1),
        std=np.ones(1),
        low=np.zeros(1),
        high=np.ones(1),
        layers=((np.ones((1, 1), np.float32), np.zeros(1, np.float32)),),
        heads=("ttft_ms",),
        scale=np.ones(1),
        offset=np.zeros(1),
        samples=1,
        seen=1,
        round=1,
        trained_at_s=0.0,
        tail=0.0,
    )


def example() -> Metrics:
    """Metrics after one request of each kind on a pool of one endpoint."""
    metrics = Metrics()
    policy = create("gorgo")
    weights = WeightBook(
        policy=policy.name, specs=policy.weight_specs, configured={}, bounds={}, source="example"
    )
    trial = Split(id="example", weights={}, valid_from_wall_s=1.0, valid_until_wall_s=2.0)
    weights.update("tuner", render_plan(Plan(policy=policy.name, trial=trial)), "example")
    picker = Picker(
        fleet=Fleet(PrefixIndex()),
        policy=policy,
        balance=create("least-request"),
        weights=weights,
        settings=PickerSettings(),
        new_id=lambda: "example",
    )
    picker.set_pool([Endpoint("10.0.0.1:8000", region="eu")], 0.0)
    picker.fleet.assume_rtt("10.0.0.1:8000", 20.0)
    for told in (Travelled(anew=True, opened_ms=40.0), Travelled(anew=False, first_byte_ms=25.0)):
        picker.fleet.paths.observe(0, 0, told, rtt_ms=20.0, body_bytes=20_000)
    picker.fleet.engine.update(0, EngineSample("vllm", 1.0, 0.0, 0.5, 1000), 0.0)
    ask = Ask(model="m", prompt=MeasuredPrompt(0, 128, [1, 2], 64.0), stream=True)
    decision = picker.pick(ask, 0.0, 0.0)
    metrics.decided(decision, foretell(decision.request, decision.fleet, decision.chosen), streamed=True)
    metrics.finished(Outcome("example", "10.0.0.1:8000", "completed", 500, 10.0, 20.0, Usage(128, 4, 0)))
    metrics.refused(503, "pool-empty")
    metrics.streams.inc()
    metrics.stream_ended("OK", 1.0)
    metrics.file_failed("endpoints")
    metrics.cluster.listed("pods")
    metrics.cluster.event("pods")
    metrics.cluster.failed("pods", "gone")
    metrics.cluster.ok("pods", ok=True)
    for family in (metrics.probe_failures, metrics.scrape_failures, metrics.restarts, metrics.ejections):
        family.labels("10.0.0.1:8000")
    metrics.model_mismatch.labels("10.0.0.1:8000")
    metrics.add_receiver("access-log", _Receiver())
    picker.fleet.health.success(0, 0.0, "outcome")
    metrics.registry.register(
        PickerCollector(
            picker,
            lambda: 0.0,
            bytes_per_token=lambda: {"m": 4.0},
            counted_by=lambda: {"m": "tokenizer"},
            saturation=lambda now_s: 0.5 + now_s,
            models=str,
        )
    )
    metrics.registry.register(FamilyCollector(observation_families()))
    metrics.registry.register(FamilyCollector(ProtocolMetrics().families()))
    config = Config(policy=PolicySection(model_file="reward.json"), shadow=["lodestar"])
    learning = Learning(config, picker, metrics, _Clock(), "example", base=Path())
    if learning.feed is not None:
        learning.feed.content(dump_reward_model(_model()))
    return metrics


def families() -> dict[str, Metric]:
    """Every metric of `example` under the name that a query uses (histograms without a suffix)."""
    shown = {}
    for metric in example().registry.collect():
        shown[f"{metric.name}_total" if metric.type == "counter" else metric.name] = metric
    return shown


def page() -> str:
    """The whole page."""
    rows = sorted(families().items(), key=lambda item: (not item[0].startswith("llm_d"), item[0]))
    return HEAD + "".join(_row(name, metric) for name, metric in rows)


def _row(name: str, metric: Metric) -> str:
    labels = sorted({label for sample in metric.samples for label in sample.labels} - {"le"})
    kind: str = metric.type
    bounds = [sample.labels["le"] for sample in metric.samples if "le" in sample.labels]
    if bounds:
        bounds = bounds[: bounds.index("+Inf")]
        kind = f"histogram, {len(bounds)} bounds {float(bounds[0]):g} to {float(bounds[-1]):g}"
    return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {metric.documentation} |\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
