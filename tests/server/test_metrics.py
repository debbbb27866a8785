"""What is counted, from decisions and outcomes to the page that Prometheus reads."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.clock import ManualClock
from epp.decide.picker import Ask, Picker, PickerSettings
from epp.decide.records import Outcome
from epp.decide.weights import WeightBook
from epp.policies.registry import create
from epp.prompt.types import MeasuredPrompt
from epp.prompt.usage import Usage
from epp.server.metrics import Metrics, PickerCollector
from epp.server.metrics_hot import Counters, Histograms
from epp.server.metrics_requests import GONE, MAX_PRIORITIES, MAX_STRANGE_MODELS
from epp.signals.duration import foretell, network_ms
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from epp.signals.prefix_index import PrefixIndex
from tests.kit.replicas import metric
from tools.gen_metrics_docs import PAGE, example, families, page

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
        self.metrics.registry.register(
            PickerCollector(self.picker, lambda: 1.0, pool="p", saturation=lambda _: 0.25, models=str)
        )

    def decide(
        self, model: str = "m", tokens: int = 1024, *, streamed: bool = True, priority: int = 0
    ) -> tuple[str, str]:
        """A decision; its id and endpoint."""
        prompt = MeasuredPrompt(0, tokens, list(range(1, tokens // 64 + 1)), 64.0)
        decision = self.picker.pick(Ask(model=model, prompt=prompt, body_bytes=4 * tokens), 0.0, 0.0)
        expected = foretell(decision.request, decision.fleet, decision.chosen)
        self.metrics.decided(decision, expected, streamed=streamed, priority=priority)
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
        self.metrics.finished(Outcome(decision_id, endpoint, cause, status, ttft_ms, e2e_ms, usage))

    def read(self, name: str, /, **labels: str) -> float:
        try:
            return metric(self.page(), name, labels)
        except KeyError:
            return 0.0

    def page(self) -> str:
        return generate_latest(self.metrics.registry).decode()


@pytest.mark.parametrize("pool", [POOL[:1], [f"10.0.1.{n}:8000" for n in range(20)]], ids=["fewer", "others"])
def test_a_pool_that_changes_while_the_page_is_written_spoils_nothing(pool: list[str]) -> None:
    """The page is written in turns with requests and everything else, a metric a turn."""
    told = len(list(Bench().metrics.registry.collect()))
    for turn in range(1, told):
        bench = Bench()
        for number, _ in enumerate(bench.metrics.registry.collect(), 1):
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
    bench.metrics.refused(503, "pool-empty", "m")
    bench.metrics.refused(400, "client")
    assert bench.read("epp_refusals_total", rule="pool-empty", status="503") == 1
    assert bench.read("llm_d_epp_request_error_total", error_code="ServiceUnavailable", model_name="m") == 1
    assert bench.read("llm_d_epp_request_total", model_name="m") == 1
    assert bench.read("llm_d_epp_request_running", model_name="m") == 0


def test_requests_are_told_apart_by_the_priority_of_their_objective() -> None:
    bench = Bench()
    bench.decide(priority=-1)
    bench.end(*bench.decide(priority=5))
    bench.decide()
    bench.metrics.refused(429, "saturated", "m", -1)
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
        bench.metrics.refused(400, "client", f"more-{number}")
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
    for family in (bench.metrics.probe_failures, bench.metrics.ejections):
        family.labels(endpoint).inc()
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


@pytest.mark.parametrize(
    ("engine_prompt", "cached", "direction", "error"),
    [
        (1024, 0, "too_many", 0.0),  # as expected: nothing was in the index
        (1024, 512, "too_many", 512.0),  # the engine knew more than we did
        (2048, 512, "too_many", 512.0),  # whatever our count of the prompt was
    ],
)
def test_the_error_of_foretold_uncached_tokens_on_a_cold_index(
    engine_prompt: int, cached: int, direction: str, error: float
) -> None:
    bench = Bench(POOL[:1])
    bench.end(*bench.decide(tokens=1024), Usage(engine_prompt, 1, cached))
    assert bench.read("epp_uncached_prediction_error_tokens_sum", direction=direction) == error
    assert bench.read("epp_uncached_prediction_error_tokens_count", direction=direction) == 1
    assert bench.read("epp_cache_tokens_total", kind="prompt") == engine_prompt
    assert bench.read("epp_cache_tokens_total", kind="reported") == cached


def test_a_cache_that_was_believed_and_gone_counts_as_too_few() -> None:
    bench = Bench(POOL[:1])
    bench.end(*bench.decide(tokens=1024), Usage(1024, 1, 0))
    bench.end(*bench.decide(tokens=1024), Usage(2048, 1, 100))
    assert bench.read("epp_cache_tokens_total", kind="believed") == 2048, "in the engine's tokens"
    assert bench.read("epp_uncached_prediction_error_tokens_sum", direction="too_few") == 1948


def test_another_endpoint_than_picked_says_nothing_about_predictions() -> None:
    bench = Bench()
    decision_id, endpoint = bench.decide()
    other = next(address for address in POOL if address != endpoint)
    bench.end(decision_id, other, Usage(1024, 1, 512))
    assert bench.read("epp_cache_tokens_total", kind="prompt") == 0
    assert bench.read("llm_d_epp_request_cached_tokens_count") == 1


def test_ttft_is_foretold_and_the_error_counted() -> None:
    bench = Bench(POOL[:1])
    for number in range(1, 40):
        decision_id, endpoint = bench.decide(tokens=64 * number)
        ledger = bench.picker.fleet.ledger  # what stands before the first token is the request alone
        assert ledger.pending_uncached_tokens[0] == 64, "the rest of each prompt is in the index"
        rates = bench.picker.fleet.rates.of(0)
        foretold = network_ms(50.0, 4 * 64 * number) + rates.prefill_base_ms + 64 * rates.prefill_ms_per_token
        bench.end(decision_id, endpoint, ttft_ms=2 * foretold)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39
    assert bench.read("epp_ttft_prediction_ratio_sum") == pytest.approx(2 * 39, rel=0.01)
    decision_id, endpoint = bench.decide(tokens=64 * 40, streamed=False)
    bench.end(decision_id, endpoint, ttft_ms=5000.0)
    assert bench.read("epp_ttft_prediction_ratio_count") == 39, "whole answers have no first token"


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_everything_below_each_bound(values: list[float]) -> None:
    family = Histograms("h", "text", (1, 5, 50))
    child = family.child()
    for value in values:
        child.observe(value)
    expected = [float(sum(value <= bound for value in values)) for bound in (1, 5, 50, math.inf)]
    assert [number for _, number in child.buckets()] == expected
    assert child.count == len(values)
    assert child.sum == pytest.approx(sum(values))


def test_a_family_refuses_another_number_of_labels() -> None:
    family = Counters("c_total", "text", ("a", "b"))
    with pytest.raises(ValueError, match="labels"):
        family.child("only one")
    assert family.child("1", "2") is family.child("1", "2")
    family.forget(a="1")
    assert len(family) == 0


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
    assert read("epp_endpoint_ejected", endpoint=POOL[2]) == 1


def test_the_page_of_metrics_is_fresh_and_complete() -> None:
    assert PAGE.read_text() == page(), "run python tools/gen_metrics_docs.py"
    without_samples = [name for name, family in families().items() if not family.samples]
    assert not without_samples, "the example must show every metric, so that its labels are known"


def test_the_page_parses_as_prometheus_text() -> None:
    text = generate_latest(example().registry).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"epp_decision_seconds", "llm_d_epp_request_ttft_seconds", "epp_weight"} <= names


def test_engines_metrics_that_come_while_the_page_is_written_are_not_younger_than_nothing() -> None:
    clock, bench = ManualClock(), Bench()
    collected = PickerCollector(bench.picker, clock.mono_s, models=str).collect()
    next(collected)
    clock.advance(1.0)
    for slot, _ in bench.picker.fleet.members:
        bench.picker.fleet.engine.update(slot, EngineSample(), clock.mono_s())
    (ages,) = [family for family in collected if family.name == "epp_endpoint_engine_age_seconds"]
    assert [sample.value for sample in ages.samples] == [0.0] * len(POOL)
