"""What llm-d's and KServe's dashboards and autoscalers ask, asked of a real Prometheus about a running picker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.deploy.test_dashboard import ask_on
from tests.kit.envoy import require_envoy
from tests.kit.picker import Serving
from tests.kit.prometheus import Prometheus, require

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.envoy

_OLD = "inference_objective_request"
#: Of the picker, without what only pairs or KV events move: llm-d/llm-d, `docs/monitoring/example-promQL-queries.md` at
#: 1b3a061 and `guides/workload-autoscaling/keda-epp` at 057abb4; kserve/kserve, `docs/samples/llmisvc/e2e-gpt-oss/grafana`
#: at aaac4e2; the autoscalers of June.
QUERIES = (
    f"sum(rate({_OLD}_error_total[5s])) / sum(rate({_OLD}_total[5s]))",
    f"sum by(model_name) (rate({_OLD}_error_total[5s])) / sum by(model_name) (rate({_OLD}_total[5s]))",
    f"sum by(error_code) (rate({_OLD}_error_total[5s]))",
    f"sum by(model_name, target_model_name) (rate({_OLD}_total{{}}[5s]))",
    f"sum by(pod) (rate({_OLD}_total[5s]))",
    f"histogram_quantile(0.90, sum by(le) (rate({_OLD}_duration_seconds_bucket[5s])))",
    "histogram_quantile(0.99, sum by(le) (rate(inference_extension_scheduler_e2e_duration_seconds_bucket[5s])))",
    "histogram_quantile(0.99, sum by(le, plugin_type) (rate(inference_extension_plugin_duration_seconds_bucket[5s])))",
    "inference_extension_prefix_indexer_size",
    "histogram_quantile(0.50, sum by(le) (rate(inference_extension_prefix_indexer_hit_ratio_bucket[5s])))",
    "histogram_quantile(0.90, sum by(le) (rate(inference_extension_prefix_indexer_hit_bytes_bucket[5s])))",
    "sum(inference_extension_flow_control_queue_size)",
    "sum by(priority) (inference_extension_flow_control_queue_size)",
    "histogram_quantile(0.99, sum by(le) (rate(inference_extension_flow_control_request_queue_duration_seconds_bucket[5s])))",
    "sum(inference_objective_running_requests)",
    'sum(llm_d_epp_flow_control_queue_size{inference_pool="default"})',
    'sum(llm_d_epp_request_running{model_name="sim-model"})',
)  # fmt: skip


async def test_each_query_shows_series(tmp_path: Path) -> None:
    require("prometheus")
    require_envoy()
    async with (
        Serving(tmp_path, protocol={"old_metric_names": True}, queue={"enabled": True}) as serving,
        Prometheus(tmp_path / "prometheus", serving.picker.http, []) as prometheus,
    ):
        traffic = asyncio.ensure_future(ask_on(serving))
        try:
            await prometheus.until(f"sum(rate({_OLD}_error_total[5s])) > 0")
            for query in QUERIES:
                await prometheus.until(query)
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)
