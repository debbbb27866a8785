"""What is counted, from decisions and outcomes to the page that Prometheus reads."""

from __future__ import annotations

import asyncio
import math
import re
from itertools import accumulate, count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from epp.apis.types import MeasuredPrompt
from epp.apis.usage import Usage
from epp.clock import ManualClock
from epp.learn.tuner.plan import Plan, Switchback, render_plan
from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.decision import Outcome
from epp.schedule.picker import Ask, Picker, PickerSettings
from epp.schedule.weights import WeightBook
from epp.server.metrics import Histogram, Metrics
from epp.server.metrics_read import PickerState
from epp.server.metrics_requests import GONE, MAX_PRIORITIES, MAX_STRANGE_MODELS
from epp.server.metrics_table import TABLE
from epp.signals.duration import foretell, network_ms
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from epp.signals.paths import Travelled
from tests.kit.replicas import metric
from tools.gen_metrics_docs import PAGE, page

POOL = ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]


class Bench:
    """A picker and its metrics, without a server."""

    def __init__(self, pool: list[str] | None = None) -> None:
        policy, numbers = create("gorgo"), count()
        self.picker = Picker(
            fleet=Fleet(PrefixIndex()),
            policy=policy,
            balance=create("least-request"),
            weights=WeightBook(
                policy="gorgo", specs=policy.weight_specs, configured={}, bounds={}, source="t"
            ),
            settings=PickerSettings(warmup_s=0.0),
            new_id=lambda: f"id-{next(numbers)}",
        )
        self.picker.set_pool([Endpoint(address) for address in pool or POOL], 0.0)
        for address in pool or POOL:
            self.picker.fleet.assume_rtt(address, 50.0)
        self.metrics = Metrics()
        self.metrics.show("picker", PickerState(self.picker, lambda: 1.0, "p", lambda _: 0.25))

    def decide(
        self, model: str = "m", tokens: int = 1024, *, streamed: bool = True, priority: int = 0
    ) -> tuple[str, str]:
        """A decision; its id and endpoint."""
        prompt = MeasuredPrompt(0, tokens, list(range(1, tokens // 64 + 1)), 64.0)
        decision = self.picker.pick(Ask(model=model, prompt=prompt, body_bytes=4 * tokens), 0.0, 0.0)
        expected = foretell(decision.request, decision.fleet, decision.chosen)
        self.metrics.requests.decided(decision, expected, streamed=streamed, priority=priority)
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
        self.picker.end(decision_id, cause, 1.0)
        self.metrics.requests.finished(Outcome(decision_id, endpoint, cause, status, ttft_ms, e2e_ms, usage))

    def read(self, name: str, /, **labels: str) -> float:
        try:
            return metric(self.page(), name, labels)
        except KeyError:
            return 0.0

    def page(self) -> str:
        return "".join(self.metrics.pieces())


@pytest.mark.parametrize("pool", [POOL[:1], [f"10.0.1.{n}:8000" for n in range(20)]], ids=["fewer", "others"])
def test_a_pool_that_changes_while_the_page_is_written_spoils_nothing(pool: list[str]) -> None:
    """The page is written in turns with requests and everything else, a metric a turn."""
    for turn in range(1, len(list(Bench().metrics.pieces()))):
        bench = Bench()
        for number, _ in enumerate(bench.metrics.pieces(), 1):
            if number == turn:
                bench.picker.set_pool([Endpoint(address) for address in pool], 1.0)


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


@pytest.mark.parametrize(
    ("status", "cause", "code"),
    [
        (429, "completed", "ResourceExhausted"),
        (503, "unreachable", "ServiceUnavailable"),
        (418, "completed", "418"),
        (99999, "completed", "Internal"),
        (200, "upstream-reset", "UpstreamReset"),
        (None, "timed-out", "TimedOut"),
        (200, "client-gone", None),
        (200, "completed", None),
        (None, "expired", None),
    ],
)
def test_errors_are_named_as_llm_d_names_them(status: int | None, cause: str, code: str | None) -> None:
    bench = Bench()
    bench.end(*bench.decide(), status=status, cause=cause)
    text = bench.page()
    assert ("llm_d_epp_request_error_total{" in text) is (code is not None)
    if code:
        assert bench.read("llm_d_epp_request_error_total", error_code=code, model_name="m") == 1


def test_a_refusal_is_a_request_and_an_error() -> None:
    bench = Bench()
    bench.metrics.requests.refused(503, "pool-empty", "m")
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
    bench.metrics.requests.refused(429, "saturated", "m", -1)
    assert bench.read("llm_d_epp_request_total", model_name="m", priority="-1") == 2
    assert bench.read("llm_d_epp_request_total", model_name="m", priority="0") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m", priority="5") == 0
    assert bench.read("llm_d_epp_request_duration_seconds_count", model_name="m", priority="5") == 1
    assert bench.read("llm_d_epp_request_error_total", priority="-1", error_code="ResourceExhausted") == 1


def test_priorities_without_end_do_not_become_labels() -> None:
    bench = Bench()
    for priority in range(3 * MAX_PRIORITIES):
        bench.decide(priority=priority)
    lines = [line for line in bench.page().splitlines() if line.startswith("llm_d_epp_request_total{")]
    assert len(lines) == MAX_PRIORITIES + 1
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == 3 * MAX_PRIORITIES, "none is lost"


def test_saturation_is_shown_for_the_pool() -> None:
    shown = Bench().read("llm_d_epp_flow_control_pool_saturation", inference_pool="p", stage="effective")
    assert shown == 0.25


def test_models_that_clients_invent_do_not_become_labels_without_end() -> None:
    bench = Bench()
    for number in range(5_000):
        bench.decide(f"invented-{number}")
        bench.metrics.requests.refused(400, "client", f"more-{number}")
    bench.decide("x" * 10_000)
    page = bench.page()
    lines = [line for line in page.splitlines() if line.startswith("llm_d_epp_request_total{")]
    assert len(lines) == MAX_STRANGE_MODELS + 1
    assert "xxxxx" not in page
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == 10_001, "none is lost"
    assert len(page) < 1_500_000


def test_models_that_the_pool_serves_keep_their_label_whatever_clients_invent() -> None:
    bench = Bench()
    for number in range(2 * MAX_STRANGE_MODELS):
        bench.decide(f"invented-{number}")
    bench.decide("served")
    assert bench.read("llm_d_epp_request_total", model_name="served") == 0
    bench.metrics.requests.models.keep({"served"})
    bench.decide("served")
    assert bench.read("llm_d_epp_request_total", model_name="served") == 1


def test_hostile_names_leave_the_page_readable() -> None:
    bench = Bench()
    names = ['q"uote', "back\\slash", "new\nline", "}", "\x00", "ünï"]
    for name in names:
        bench.decide(name)
    read = {
        sample.labels["model_name"]
        for family in text_string_to_metric_families(bench.page())
        for sample in family.samples
        if sample.name == "llm_d_epp_request_total"
    }
    assert read == set(names)


def test_an_endpoint_that_leaves_takes_its_series_along() -> None:
    bench = Bench()
    decision_id, endpoint = bench.decide()
    bench.end(*bench.decide())
    bench.metrics.endpoint_event(endpoint, "ejected")
    for address in POOL:
        bench.picker.set_pool([], 1.0)
        bench.metrics.forget_endpoint(address)
    assert "10.0.0." not in bench.page()
    assert "fd00" not in bench.page()
    bench.end(decision_id, endpoint)
    assert "10.0.0." not in bench.page(), "a late end does not bring it back"
    assert bench.read("epp_outcomes_total", endpoint=GONE, cause="completed") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m") == 0


def test_what_is_remembered_of_open_requests_goes_with_their_ends() -> None:
    bench = Bench()
    opened = [bench.decide() for _ in range(50)]
    assert bench.metrics.requests.open == 50
    for decision_id, endpoint in opened:
        bench.end(decision_id, endpoint)
    assert bench.metrics.requests.open == 0


def test_cached_tokens_expected_and_reported_are_in_the_engines_tokens() -> None:
    bench = Bench(POOL[:1])
    bench.end(*bench.decide(tokens=1024), Usage(1024, 1, 0))
    bench.end(*bench.decide(tokens=1024), Usage(2048, 1, 100))
    found = [bench.read("epp_cache_tokens_total", kind=kind) for kind in ("prompt", "expected", "reported")]
    assert found == [3072, 2048, 100]


def test_another_endpoint_than_picked_says_nothing_about_predictions() -> None:
    bench = Bench()
    decision_id, endpoint = bench.decide()
    other = next(address for address in POOL if address != endpoint)
    bench.end(decision_id, other, Usage(1024, 1, 512))
    assert bench.read("epp_cache_tokens_total", kind="prompt") == 0
    assert bench.read("llm_d_epp_request_cached_tokens_count") == 1


def test_ttft_is_predicted_and_the_ratio_counted() -> None:
    bench = Bench(POOL[:1])
    for number in range(1, 40):
        decision_id, endpoint = bench.decide(tokens=64 * number)
        ledger = bench.picker.fleet.ledger  # what stands before the first token is the request alone
        assert ledger.pending_uncached_tokens[0] == 64, "the rest of each prompt is in the index"
        rates = bench.picker.fleet.rates.of(0)
        predicted = (
            network_ms(50.0, 4 * 64 * number) + rates.prefill_base_ms + 64 * rates.prefill_ms_per_token
        )
        bench.end(decision_id, endpoint, ttft_ms=2 * predicted)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39
    assert bench.read("epp_ttft_prediction_ratio_sum") == pytest.approx(2 * 39, rel=0.01)
    decision_id, endpoint = bench.decide(tokens=64 * 40, streamed=False)
    bench.end(decision_id, endpoint, ttft_ms=5000.0)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39, "whole answers have no first token"


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_everything_up_to_each_bound(values: list[float]) -> None:
    histogram = Histogram((1, 5, 50))
    for value in values:
        histogram.observe(value)
    assert list(accumulate(histogram.counts)) == [
        sum(value <= bound for value in values) for bound in (1, 5, 50, math.inf)
    ]
    assert histogram.sum == pytest.approx(sum(values))


def test_a_metric_refuses_another_number_of_labels() -> None:
    with pytest.raises(ValueError, match="labels"):
        Metrics().value("epp_refusals_total", "503")


def test_llm_ds_gauges_of_the_pool() -> None:
    bench = Bench()
    fleet = bench.picker.fleet
    for slot, waiting in ((0, 1.0), (1, 5.0)):
        fleet.engine.update(slot, EngineSample("vllm", 2.0, waiting, 0.5), 0.5)
    for _ in range(3):
        fleet.health.failure(2, "probe", 0.9)
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


def test_the_page_of_the_docs_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run python tools/gen_metrics_docs.py"


def test_every_metric_that_code_names_is_one_of_the_table() -> None:
    named = set()
    for file in Path("epp/server").rglob("*.py"):
        named |= set(re.findall(r'"((?:llm_d_)?epp_\w+(?:_total|_seconds|_ratio))"', file.read_text()))
    shown = {row.name for row in TABLE}
    assert named <= shown | {f"{name}_count" for name in shown}


def test_engines_metrics_that_come_while_the_page_is_written_are_not_younger_than_nothing() -> None:
    clock, bench = ManualClock(), Bench()
    bench.metrics.show("picker", PickerState(bench.picker, clock.mono_s))
    pieces = bench.metrics.pieces()
    next(pieces)
    clock.advance(1.0)
    for slot, _ in bench.picker.fleet.members:
        bench.picker.fleet.engine.update(slot, EngineSample(), clock.mono_s())
    assert metric("".join(pieces), "epp_endpoint_engine_age_seconds") == 0.0


async def test_the_page_lets_others_in_while_it_is_written() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await Bench().metrics.page()
    task.cancel()
    assert turns > 40


def trial_of(trial: Switchback | None) -> Bench:
    plan = Plan(weights={"rtt_weight": 0.5}, policy="gorgo", written_wall_s=7.0, trial=trial)
    bench = Bench()
    bench.picker.weights.update("tuner", render_plan(plan), "weights.yaml")
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


def test_outside_of_trials_there_is_one_arm() -> None:
    bench = trial_of(None)
    bench.decide()
    assert 'arm="candidate"' not in bench.page()
    assert bench.read("epp_decisions_total", arm="none") == 1


def test_paths_that_nobody_reported_have_no_series_and_a_region_is_one_path() -> None:
    bench = Bench([])
    bench.picker.set_pool([Endpoint("a:1", region="eu"), Endpoint("b:1", region="eu"), Endpoint("c:1")], 0.0)
    fleet = bench.picker.fleet
    fleet.assume_rtt("a:1", 100.0)
    assert 'path="' not in bench.page()
    warm = Travelled(anew=False, first_byte_ms=150.0)
    for slot in (0, 1):
        fleet.paths.observe(slot, 0, warm, rtt_ms=100.0, body_bytes=43_800)
    fleet.paths.observe(0, 6, Travelled(anew=True, opened_ms=210.0), rtt_ms=100.0, body_bytes=43_800)
    fleet.paths.observe(2, 6, Travelled(anew=True, opened_ms=105.0), rtt_ms=100.0, body_bytes=43_800)
    assert bench.read("epp_path_requests_total", path="eu", connection="warm") == 2
    assert bench.read("epp_path_requests_total", path="eu", connection="cold") == 1
    assert bench.read("epp_path_network_seconds", path="eu", connection="warm") == pytest.approx(0.15)
    assert bench.read("epp_path_network_seconds", path="eu", connection="cold") == pytest.approx(0.51)
    assert bench.read("epp_path_requests_total", path="c:1", connection="cold") == 1
