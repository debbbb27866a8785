"""What is counted, from decisions and outcomes to the page that Prometheus reads."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from docs.generate_metrics import ABSENT, PAGE, page
from epp.apis.usage import Usage
from epp.config.plan import Plan, Switchback, render_plan
from epp.metrics.metrics import GONE, MAX_FLOWS, MAX_STRANGE_MODELS, Metrics
from epp.metrics.read import PickerState
from epp.metrics.table import TABLE
from epp.schedule.decision import Outcome
from epp.signals.metrics_text import EngineSample
from epp.signals.rates import DEFAULT_PRIOR
from epp.types import UPLOAD_ROUNDS, Endpoint, Role, network_ms
from tests.kit.records import picker_of
from tests.kit.replicas import metric
from tests.kit.requests import asked, measured

if TYPE_CHECKING:
    from collections.abc import Sequence

POOL = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000")


class Bench:
    """A picker and its metrics, without a server."""

    def __init__(self, pool: Sequence[str] = POOL) -> None:
        self.scheduler = picker_of(pool=[Endpoint(address) for address in pool])
        for address in pool:
            self.scheduler.datastore.assume_rtt(address, 50.0)
        self.metrics = Metrics(TABLE)
        self.metrics.show("picker", PickerState(self.scheduler, lambda: 1.0, "p", lambda _: 0.25))

    def decide(
        self, model: str = "m", tokens: int = 1024, *, streamed: bool = True, priority: int = 0
    ) -> tuple[str, str]:
        """A decision; its id and endpoint."""
        prompt = measured(0, tokens, list(range(1, tokens // 64 + 1)), 64.0)
        decision = self.scheduler.decide(
            asked(model=model, prompt=prompt, body_bytes=4 * tokens, stream=streamed, priority=priority),
            0.0,
            0.0,
        )
        self.metrics.requests.decided(decision)
        return decision.id, decision.endpoint

    def end(
        self,
        decision_id: str,
        endpoint: str,
        usage: Usage = Usage(),  # noqa: B008 - frozen
        *,
        status: int | None = 200,
        cause: str = "completed",
        ttft_ms: float = 100.0,
        e2e_ms: float = 400.0,
    ) -> None:
        self.scheduler.end(decision_id, cause, 1.0)
        self.metrics.requests.finished(Outcome(decision_id, endpoint, cause, status, ttft_ms, e2e_ms, usage))

    def read(self, name: str, /, **labels: str) -> float:
        try:
            return metric(self.page(), name, labels)
        except KeyError:
            return 0.0

    def page(self) -> str:
        return "".join(self.metrics.pieces())


def test_a_request_is_counted_from_its_decision_to_its_end() -> None:
    bench = Bench()
    one, endpoint = bench.decide()
    two, other = bench.decide()
    assert bench.read("llm_d_epp_request_total", model_name="m") == 2
    assert bench.read("llm_d_epp_request_running", model_name="m") == 2
    assert bench.read("epp_decisions_total", policy="gorgo", basis="policy") == 2
    bench.end(one, endpoint, Usage(1000, 31, 640))
    bench.end(two, other, cause="client-gone", status=None, ttft_ms=math.nan)
    bench.end(two, other)
    read = bench.read
    assert read("llm_d_epp_request_running", model_name="m") == 0
    assert read("llm_d_epp_request_duration_seconds_count", model_name="m") == 2, "an end counts once"
    assert read("llm_d_epp_request_duration_seconds_sum", model_name="m") == pytest.approx(0.8)
    assert read("llm_d_epp_request_ttft_seconds_sum", streaming="true") == pytest.approx(0.1)
    assert read("llm_d_epp_request_ttft_seconds_count", streaming="true") == 1, "not seen is not zero"
    assert read("llm_d_epp_request_output_tokens_sum", model_name="m") == 31
    assert read("llm_d_epp_request_streaming_tpot_seconds_sum", model_name="m") == pytest.approx(0.01)
    assert read("llm_d_epp_request_ntpot_seconds_sum", model_name="m") == pytest.approx(0.4 / 31)
    assert read("llm_d_epp_request_input_tokens_sum") == 1000 + 1024, "told by the engine, else counted here"
    assert read("llm_d_epp_request_cached_tokens_count") == 1, "absent is unknown"
    assert read("llm_d_epp_request_size_bytes_sum") == 2 * 4096
    assert read("epp_outcomes_total", endpoint=endpoint, cause="completed", status="2xx") == 1
    assert read("epp_outcomes_total", endpoint=other, cause="client-gone", status="none") == 1
    assert read("epp_usage_total", known="cached_tokens") == 1
    assert read("epp_usage_total", known="nothing") == 1


def test_a_refusal_is_a_request_and_an_error() -> None:
    bench = Bench()
    bench.metrics.requests.refused(503, "pool-empty", ("m", "m"))
    bench.metrics.requests.refused(400, "client")
    assert bench.read("epp_refusals_total", rule="pool-empty", status="503") == 1
    assert bench.read("llm_d_epp_request_error_total", error_code="ServiceUnavailable", model_name="m") == 1
    assert bench.read("llm_d_epp_request_total", model_name="m") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m") == 0


def test_requests_are_told_apart_by_the_priority_of_their_objective() -> None:
    bench = Bench()
    bench.decide(priority=-1)
    bench.end(*bench.decide(priority=5))
    bench.decide()
    bench.metrics.requests.refused(429, "saturated", ("m", "m"), -1)
    assert bench.read("llm_d_epp_request_total", model_name="m", priority="-1") == 2
    assert bench.read("llm_d_epp_request_total", model_name="m", priority="0") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m", priority="5") == 0
    assert bench.read("llm_d_epp_request_duration_seconds_count", model_name="m", priority="5") == 1
    assert bench.read("llm_d_epp_request_error_total", priority="-1", error_code="ResourceExhausted") == 1


def test_models_that_clients_invent_do_not_become_labels_without_end() -> None:
    bench = Bench()
    for number in range(5_000):
        bench.decide(f"invented-{number}")
        bench.metrics.requests.refused(400, "client", (f"more-{number}",) * 2)
    bench.decide("x" * 10_000)
    page = bench.page()
    lines = [line for line in page.splitlines() if line.startswith("llm_d_epp_request_total{")]
    assert len(lines) == MAX_STRANGE_MODELS + 1
    assert "xxxxx" not in page
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == 10_001, "none is lost"
    assert len(page) < 1_500_000


def test_flows_that_clients_invent_do_not_become_labels_without_end() -> None:
    flow_labels, request = Bench().metrics.requests.flow_labels, asked(model="m", priority=2)
    flows = {flow_labels(request, f"tenant-{number}") for number in range(100)}
    assert len(flows) == MAX_FLOWS + 1
    assert ("other", "2", "m", "m") in flows
    assert flow_labels(request, "") == ("default-flow", "2", "m", "m"), (
        "llm-d's name, also when it comes late"
    )


def test_an_endpoint_that_leaves_takes_its_series_along() -> None:
    bench = Bench()
    decision_id, endpoint = bench.decide()
    bench.end(*bench.decide())
    bench.metrics.endpoint_event(endpoint, "ejected")
    for address in POOL:
        bench.scheduler.set_pool([], 1.0)
        bench.metrics.forget_endpoint(address)
    assert "10.0.0." not in bench.page()
    assert "fd00" not in bench.page()
    bench.end(decision_id, endpoint)
    assert "10.0.0." not in bench.page(), "a late end does not bring it back"
    assert bench.read("epp_outcomes_total", endpoint=GONE, cause="completed") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m") == 0


def test_a_rank_that_leaves_keeps_the_series_of_those_that_share_its_address() -> None:
    bench = Bench(("10.0.0.1:8000@0", "10.0.0.1:8000@1"))
    for _ in range(2):
        bench.decide()
    bench.scheduler.set_pool([], 1.0)
    bench.metrics.forget_endpoint("10.0.0.1:8000@1")
    assert bench.read("llm_d_epp_scheduler_attempts_total", endpoint_name="10.0.0.1") == 2
    bench.metrics.forget_endpoint("10.0.0.1:8000@0")
    assert "10.0.0.1" not in bench.page()


def test_cached_tokens_expected_and_reported_are_in_the_engines_tokens() -> None:
    bench = Bench(POOL[:1])
    bench.end(*bench.decide(tokens=1024), Usage(1024, 1, 0))
    bench.end(*bench.decide(tokens=1024), Usage(2048, 1, 100))
    found = [bench.read("epp_cache_tokens_total", kind=kind) for kind in ("prompt", "expected", "reported")]
    assert found == [3072, 2048, 100]


def test_ttft_is_predicted_and_the_ratio_counted() -> None:
    bench = Bench(POOL[:1])
    for number in range(1, 40):
        decision_id, endpoint = bench.decide(tokens=64 * number)
        ledger = bench.scheduler.datastore.ledger  # what stands before the first token is the request alone
        assert ledger.pending_uncached_tokens[0] == 64, "the rest of each prompt is in the index"
        rates = bench.scheduler.datastore.rates.of(0)
        predicted = (
            network_ms(50.0, 4 * 64 * number, UPLOAD_ROUNDS)
            + rates.prefill_base_ms
            + 64 * rates.prefill_ms_per_token
        )
        bench.end(decision_id, endpoint, ttft_ms=2 * predicted)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39
    assert bench.read("epp_ttft_prediction_ratio_sum") == pytest.approx(2 * 39, rel=0.01)
    decision_id, endpoint = bench.decide(tokens=64 * 40, streamed=False)
    bench.end(decision_id, endpoint, ttft_ms=5000.0)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39, "whole answers have no first token"


def test_llm_ds_gauges_of_the_pool() -> None:
    bench = Bench()
    datastore = bench.scheduler.datastore
    for slot, waiting in ((0, 1.0), (1, 5.0)):
        datastore.engine.update(slot, EngineSample("vllm", 2.0, waiting, 0.5), 0.5)
    for _ in range(3):
        datastore.health.failure(2, "probe", 0.9)
    bench.decide(tokens=640)
    read = bench.read
    assert read("llm_d_epp_ready_endpoints", name="p") == 2
    assert read("llm_d_epp_average_queue_size", name="p") == 3, "over those that tell"
    assert read("llm_d_epp_std_dev_queue_size", name="p") == 2
    assert read("llm_d_epp_per_endpoint_queue_size", model_server_endpoint="10.0.0.2:8000") == 5
    assert read("llm_d_epp_average_kv_cache_utilization", name="p") == 0.5
    load = [read("llm_d_epp_inflight_tokens", endpoint_name=address) for address in POOL]
    assert sum(load) == 640
    assert read("epp_endpoint_rtt_seconds", endpoint=POOL[0]) == pytest.approx(0.05)
    assert read("epp_endpoint_unavailable", endpoint=POOL[2], reason="ejected") == 1
    assert read("epp_health_panicking") == 0
    for slot in (0, 1):
        datastore.health.eject_until(slot, 9.0, 0.9)
    assert read("epp_health_panicking") == 1


def test_what_was_learned_of_engines_is_shown() -> None:
    bench = Bench()
    datastore, read = bench.scheduler.datastore, bench.read
    datastore.calibration.observe(0, 4000.0, 1000.0)
    for second in range(200):
        for slot, itl_ms in enumerate((5.0, 5.0, 20.0)):
            datastore.rates.observe_decode(
                slot, ended_s=float(second), beside=1.0 + second % 9, itl_ms=itl_ms
            )
    assert 0.0 < read("epp_endpoint_hit_ratio", endpoint=POOL[0]) < 1.0
    assert read("epp_endpoint_slowness", endpoint=POOL[2]) > 2.0
    learned = read("epp_engine_rate", rate="decode_base_ms")
    assert learned == datastore.rates.of(0).decode_base_ms != DEFAULT_PRIOR.decode_base_ms


def test_the_page_of_the_docs_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run python -m docs.generate_metrics"


def test_every_metric_that_code_names_is_one_of_the_table() -> None:
    named = set()
    for file in Path("epp/server").rglob("*.py"):
        named |= set(re.findall(r'"((?:llm_d_)?epp_\w+(?:_total|_seconds|_ratio))"', file.read_text()))
    shown = {row.name for row in TABLE}
    assert named <= shown | {f"{name}_count" for name in shown}


def trial_of(trial: Switchback | None) -> Bench:
    plan = Plan(weights={"rtt_weight": 0.5}, policy="gorgo", written_wall_s=7.0, trial=trial)
    bench = Bench()
    bench.scheduler.weights.update("tuner", render_plan(plan), "weights.yaml")
    return bench


def test_a_trial_shows_the_weights_and_the_decisions_of_both_arms() -> None:
    weights = {"rtt_weight": 0.9}
    bench = trial_of(
        Switchback(id="c1", weights=weights, valid_from_wall_s=0.0, valid_until_wall_s=9.0, every=2)
    )
    bench.decide()
    assert bench.read("epp_weight", name="rtt_weight", source="tuner", arm="incumbent") == 0.5
    assert bench.read("epp_weight", name="rtt_weight", arm="candidate") == 0.9
    assert bench.read("epp_weights_written_timestamp_seconds", policy="gorgo") == 7.0
    assert bench.read("epp_decisions_total", arm="candidate") == 1


#: Names of llm-d-router at ebab687 that are here: those of ``pkg/epp`` and of ``pkg/kvcache/metrics``.
PRESENT = """
average_kv_cache_utilization average_queue_size average_running_requests datalayer_extract_errors_total
datalayer_poll_errors_total disagg_decision_total encoder_cache_hit_ratio encoder_cache_hits_total
encoder_cache_queries_total extproc_stream_duration_seconds extproc_streams_inflight extproc_streams_total
flow_control_capacity_utilization_bytes flow_control_capacity_utilization_requests
flow_control_dispatch_cycle_duration_seconds flow_control_global_capacity_utilization_bytes
flow_control_global_capacity_utilization_requests flow_control_pool_saturation flow_control_queue_bytes
flow_control_queue_size flow_control_request_enqueue_duration_seconds
flow_control_request_queue_duration_seconds flow_control_requests_total flow_control_stale_endpoints
inference_request_metric inflight_requests inflight_tokens info kv_cache_events_active_subscribers
kv_cache_events_dedup_removed_hashes_forwarded_total kv_cache_events_dedup_removed_hashes_suppressed_total
kv_cache_index_admissions_total kv_cache_index_evictions_total kv_cache_index_lookup_hits_total
kv_cache_index_lookup_requests_total kv_cache_index_max_pod_hit_count_total model_rewrite_decisions_total
pd_decision_total per_endpoint_queue_size plugin_duration_seconds prefix_indexer_hit_bytes
prefix_indexer_hit_ratio prefix_indexer_size program_aware_attained_service_tokens
program_aware_avg_wait_time_milliseconds program_aware_jains_fairness_index ready_endpoints
request_cached_tokens request_duration_seconds request_error_total request_input_tokens request_ntpot_seconds
request_output_tokens request_predicted_tpot_seconds request_predicted_ttft_seconds
request_processing_duration_seconds request_running request_size_bytes request_slo_violation_total
request_streaming_itl_seconds request_streaming_tpot_seconds request_total request_ttft_seconds
response_processing_duration_seconds response_size_bytes scheduler_attempts_total
scheduler_e2e_duration_seconds std_dev_kv_cache_utilization std_dev_queue_size std_dev_running_requests
"""


def test_each_of_llm_d_s_metrics_is_here_or_the_docs_say_why_not() -> None:
    present = PRESENT.split()
    ours = {row.name.removeprefix("llm_d_epp_") for row in TABLE if row.name.startswith("llm_d_")}
    assert ours == set(present)
    absent = {name for names, _ in ABSENT for name in names.split()}
    assert (len(present), len(absent), absent & ours) == (70, 18, set())


class _Parted:
    """A decision's snapshot in which one of two endpoints of a pair holds one of two media."""

    def __init__(self, *roles: Role, slo_ms: float = 0.0, stream: bool = True) -> None:
        scheduler = picker_of(pool=[Endpoint(address) for address in POOL[:2]])
        prompt = measured(0, 1024, list(range(1, 17)), 64.0)
        request = asked(model="m", stream=stream, prompt=prompt, media=(1, 2))
        decision = scheduler.decide(request, 0.0, 0.0)
        extra = {
            "media:64": np.array([0.5, 0.0]),
            "ttft_slo_ms": np.full(2, slo_ms),
            "tpot_slo_ms": np.full(2, slo_ms),
        }
        seen = replace(decision.snapshot, extra=extra, workers={Role.PREFILL: decision.snapshot})
        legs = tuple(replace(decision.legs[-1], role=role) for role in (*roles, Role.DECODE))
        self.decision = replace(decision, snapshot=seen, legs=legs)


@pytest.mark.parametrize(
    ("roles", "kind", "pair"),
    [
        ((), "decode-only", "decode-only"),
        ((Role.PREFILL,), "prefill-decode", "prefill-decode"),
        ((Role.ENCODE,), "encode-decode", "decode-only"),
        ((Role.ENCODE, Role.PREFILL), "encode-prefill-decode", "prefill-decode"),
    ],
)
def test_stages_and_media_are_counted_as_llm_d_s_plugins_do(
    roles: tuple[Role, ...], kind: str, pair: str
) -> None:
    bench = Bench()
    bench.metrics.requests.decided(_Parted(*roles).decision)
    read = bench.read
    assert read("llm_d_epp_disagg_decision_total", model_name="m", decision_type=kind) == 1
    assert read("llm_d_epp_pd_decision_total", model_name="m", decision_type=pair) == 1
    assert read("llm_d_epp_encoder_cache_queries_total") == 2
    assert read("llm_d_epp_encoder_cache_hits_total", pod=POOL[0]) == 1
    assert read("llm_d_epp_encoder_cache_hit_ratio_count") == 2
    bench.metrics.forget_endpoint(POOL[0])
    assert read("llm_d_epp_encoder_cache_hits_total") == 0


def test_an_answer_that_comes_whole_has_no_time_per_token() -> None:
    bench = Bench()
    decision = _Parted(slo_ms=50.0, stream=False).decision
    bench.metrics.requests.decided(decision)
    usage = Usage(1024, 31, 0)
    bench.metrics.requests.finished(
        Outcome(decision.id, decision.endpoint, "completed", 200, 400.0, 400.0, usage)
    )
    found = [bench.read("llm_d_epp_inference_request_metric", type=what) for what in ("ttft", "tpot")]
    assert found == [0.4, 0]
    assert 'type="tpot_slo_violation"' not in bench.page()


def test_predictions_objectives_and_lookups_are_counted_as_llm_d_s_plugins_do() -> None:
    bench = Bench()
    decision = _Parted(slo_ms=50.0).decision
    bench.metrics.requests.decided(decision)
    bench.metrics.requests.scheduled(decision, 0.001)
    ended = Outcome(
        decision.id, decision.endpoint, "completed", 200, 100.0, 400.0, Usage(1024, 31, 0), response_bytes=900
    )
    bench.metrics.requests.finished(ended)
    read = bench.read
    expected = decision.legs[-1].expected
    assert read("llm_d_epp_request_predicted_ttft_seconds_sum") == pytest.approx(expected.first_token_s)
    assert read("llm_d_epp_request_predicted_tpot_seconds_count", target_model_name="m") == 1
    last = {what: read("llm_d_epp_inference_request_metric", type=what) for what in ("ttft", "tpot")}
    assert last == {"ttft": pytest.approx(0.1), "tpot": pytest.approx(0.01)}
    assert read("llm_d_epp_inference_request_metric", type="predicted_ttft") == expected.first_token_s
    missed = [read("llm_d_epp_request_slo_violation_total", type=what) for what in ("ttft", "tpot")]
    assert missed == [1, 0]
    assert read("llm_d_epp_inference_request_metric", type="ttft_slo_violation") == 1
    assert read("llm_d_epp_response_size_bytes_sum", model_name="m") == 900
    assert read("llm_d_epp_kv_cache_index_lookup_requests_total") == 1
    assert read("llm_d_epp_kv_cache_index_lookup_hits_total") == 0
    assert read("llm_d_epp_prefix_indexer_hit_bytes_count") == 1
    assert read("llm_d_epp_plugin_duration_seconds_sum", plugin_type=decision.policy) == 0.001
    bench.decide()
    bench.decide()
    for name in ("lookup_hits", "max_pod_hit_count"):
        assert read(f"llm_d_epp_kv_cache_index_{name}_total") == 16, "blocks of 64 tokens"
    assert read("llm_d_epp_prefix_indexer_hit_bytes_sum") in (0, 4096)


def test_old_names_have_the_labels_that_they_had() -> None:
    bench = Bench()
    bench.metrics = Metrics(TABLE, old_names=True)
    bench.metrics.show("picker", PickerState(bench.scheduler, lambda: 1.0, "p", lambda _: 0.25))
    bench.decide(priority=1)
    bench.end(*bench.decide(priority=2), Usage(1000, 31, 640))
    page = bench.page()
    assert 'inference_objective_running_requests{model_name="m"} 1.0\n' in page
    assert (
        'inference_objective_request_duration_seconds_count{model_name="m",target_model_name="m"} 1.0' in page
    )
    assert bench.read("inference_objective_request_total", priority="1") == 1
    assert 'inference_pool_ready_pods{name="p"} 3.0\n' in page
    assert bench.read("inference_extension_prefix_indexer_hit_ratio_count") == 2
    assert (
        'inference_extension_flow_control_pool_saturation{inference_pool="p",stage="effective"} 0.25' in page
    )
    assert "inference_" not in Bench().page().replace("llm_d_epp_inference_", "").replace(
        "inference_pool=", ""
    )
