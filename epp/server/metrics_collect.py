"""Gauges and counters that are read when a scrape asks, so that nothing is updated for them.

Owns which signal is shown under which name. Signals in milliseconds are shown in seconds, Prometheus' unit.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.server.metrics_paths import path_families
from epp.server.metrics_requests import FAIRNESS_ID, PRIORITY
from epp.server.metrics_weights import weight_families
from epp.signals.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from prometheus_client.core import Metric

    from epp.decide.picker import Picker

_MS = re.compile(r"_ms(?=_per_|$)")
_LOAD_LABELS = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


class Receiver(Protocol):
    """Something that takes reports and counts them."""

    @property
    def received(self) -> int:
        """Reports handed on."""
        ...

    @property
    def malformed(self) -> int:
        """Messages that could not be read."""
        ...

    @property
    def failed(self) -> int:
        """Reports that their receiver raised on."""
        ...


class ReceiverCollector(Collector):
    """Counts of the receivers of reports."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def add(self, name: str, receiver: Receiver) -> None:
        """Show this receiver, too."""
        self._receivers[name] = receiver

    def collect(self) -> Iterator[Metric]:
        """One family."""
        shown = CounterMetricFamily(
            "epp_reports_total",
            "Reports of Envoy taken, by receiver and by what became of them.",
            labels=("receiver", "result"),
        )
        for name, receiver in self._receivers.items():
            for result in ("received", "malformed", "failed"):
                shown.add_metric((name, result), getattr(receiver, result))
        yield shown


class PickerCollector(Collector):
    """What the picker and its signals are at this moment.

    Args:
        picker: read from.
        mono_s: the time.
        pool: name of the pool, for llm-d's gauges of it.
        bytes_per_token: what was learned by model, the last observed last.
        saturation: how saturated the pool is at an instant; not shown when None.
        models: label of a model.
        counted_by: what counts the tokens of a model's prompts, by model.
    """

    def __init__(
        self,
        picker: Picker,
        mono_s: Callable[[], float],
        pool: str = "default",
        bytes_per_token: Callable[[], Mapping[str, float]] | None = None,
        saturation: Callable[[float], float] | None = None,
        *,
        models: Callable[[str], str],
        counted_by: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._picker, self._mono_s, self._pool = picker, mono_s, pool
        self._bytes_per_token, self._saturation, self._models = bytes_per_token, saturation, models
        self._counted_by = counted_by

    def describe(self) -> list[Metric]:
        """Nothing to describe before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family per signal, one series per endpoint; weights, index, pool and stores."""
        # Each part asks for the time itself: between two the page lets others in, and engines' metrics come.
        yield from weight_families(self._picker.weights)
        yield from self._stores()
        yield from self._per_endpoint(self._mono_s())
        yield from self._whole_pool(self._mono_s())
        yield from self._learned(self._mono_s())
        yield from path_families(self._picker.fleet, self._mono_s())

    def _learned(self, now_s: float) -> Iterator[Metric]:
        """What the estimates have become, and where the round trips come from."""
        fleet = self._picker.fleet
        ratios = GaugeMetricFamily(
            "epp_bytes_per_token",
            "Canonical bytes per prompt token as learned, by model; none before anything was learned.",
            labels=["model_name"],
        )
        shown: dict[str, float] = {}
        for model, ratio in (self._bytes_per_token() if self._bytes_per_token else {}).items():
            shown[self._models(model)] = ratio
        for model, ratio in shown.items():
            ratios.add_metric([model], ratio)
        yield ratios
        counters = GaugeMetricFamily(
            "epp_model_tokens_counted",
            "1 for what counts the tokens of prompts for a served model: its tokenizer, or the estimate.",
            labels=["model_name", "by"],
        )
        counted_by = {self._models(model): by for model, by in self._counted_by().items()}
        for model, by in counted_by.items():
            counters.add_metric([model, by], 1.0)
        yield counters
        sources = GaugeMetricFamily(
            "epp_endpoint_rtt_source",
            "1 for where the endpoint's round trip comes from: Envoy's connects, probes, or an assumption.",
            labels=["endpoint", "source"],
        )
        for slot, endpoint in fleet.members:
            source = fleet.rtt.source(slot, now_s)
            if source:
                sources.add_metric([endpoint.address, source], 1.0)
        yield sources
        yield from self._rates()

    def _rates(self) -> Iterator[Metric]:
        """How fast engines are, by class; which endpoints were found slower is in `epp_endpoint_slowness`."""
        rates = GaugeMetricFamily(
            "epp_engine_rate",
            "Times of an engine class as learned: prefill_base_ms, prefill_ms_per_token, decode_base_ms,"
            " decode_ms_per_request.",
            labels=["engine_class", "rate"],
        )
        samples = CounterMetricFamily(
            "epp_engine_rate_samples_total",
            "Measurements of an engine class: learned from, or refused as times that no engine has.",
            labels=["engine_class", "of"],
        )
        state = GaugeMetricFamily(
            "epp_engine_rate_state",
            "1 for what an engine class' rates rest on: priors alone, measurements, or measurements that fit"
            " no engine, so that a rate stands at a bound.",
            labels=["engine_class", "state"],
        )
        slow = GaugeMetricFamily(
            "epp_endpoint_slowness",
            "Factor by which an endpoint was found slower than its engine class; 1 for equals.",
            labels=["endpoint"],
        )
        fleet, factors = self._picker.fleet, dict[str, float]()
        for name, known in fleet.rates.describe({s: e.address for s, e in fleet.members}).items():
            for rate in (one.name for one in fields(Rates)):
                rates.add_metric([name, rate], getattr(known.rates, rate))
            for of, count in (
                ("prefill", known.prefill_samples),
                ("decode", known.decode_samples),
                ("refused", known.refused),
            ):
                samples.add_metric([name, of], count)
            state.add_metric([name, known.state.value], 1.0)
            factors.update(known.slow)
        for _, endpoint in fleet.members:
            slow.add_metric([endpoint.address], factors.get(endpoint.address, 1.0))
        yield from (rates, samples, state, slow)

    def _stores(self) -> Iterator[Metric]:
        picker, fleet = self._picker, self._picker.fleet
        stats = fleet.index.stats()
        gauges = (
            ("epp_requests_in_flight", "Requests decided and not ended.", picker.in_flight),
            ("epp_leases", "Leases held.", len(fleet.ledger)),
            ("epp_prefix_index_segments", "Segments of the prefix index.", stats.segments),
            ("epp_prefix_index_blocks", "Distinct blocks of the prefix index.", stats.blocks),
            ("epp_health_panicking", "1 while ejections are ignored.", fleet.health.panicking),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=float(value))
        counters = (
            ("epp_health_panics_total", "Times that ejections began to be ignored.", fleet.health.panics),
            ("epp_leases_pushed_out_total", "Leases pushed out by newer ones.", fleet.ledger.pushed_out),
            (
                "epp_calibration_windows_total",
                "Windows of engines' counters that told how good the estimates are.",
                fleet.calibration.used,
            ),
            (
                "epp_calibration_refused_total",
                "Windows that told nothing, because engines finished more or fewer requests than we sent.",
                fleet.calibration.refused,
            ),
            ("epp_rtt_rejected_total", "RTT samples refused as no time at all.", fleet.rtt.rejected),
        )
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=float(value))

    def _per_endpoint(self, now_s: float) -> Iterator[Metric]:
        for name, text, values in self._picker.fleet.gauges(now_s):
            shown = _MS.sub("_seconds", name)  # Prometheus counts time in seconds
            scale = 1.0 if shown == name else 1e-3
            family = GaugeMetricFamily(f"epp_endpoint_{shown}", text, labels=["endpoint"])
            for address, value in values:
                family.add_metric([address], value * scale)
            yield family

    def _whole_pool(self, now_s: float) -> Iterator[Metric]:
        """llm-d's gauges: sizes of the pool, loads of its endpoints and their spread."""
        fleet = self._picker.fleet
        members = fleet.members
        slots = np.array([slot for slot, _ in members], np.intp)
        healthy = fleet.healthy(now_s)
        ready = sum(
            not endpoint.draining and (healthy is None or bool(healthy[slot])) for slot, endpoint in members
        )
        yield self._of_pool("ready_endpoints", "Endpoints that may be picked.", float(ready))
        engine = fleet.engine.block(now_s)[:, slots]
        running, waiting, kv_usage = engine[0], engine[1], engine[2]
        for name, text, column in (
            ("queue_size", "requests waiting in engines", waiting),
            ("running_requests", "requests running in engines", running),
            ("kv_cache_utilization", "KV cache usage of engines, 0 to 1", kv_usage),
        ):
            mean, deviation = _mean(column)
            yield self._of_pool(f"average_{name}", f"Mean of {text}, over those that tell.", mean)
            yield self._of_pool(f"std_dev_{name}", f"Standard deviation of {text}.", deviation)
        queues = GaugeMetricFamily(
            "llm_d_epp_per_endpoint_queue_size",
            "Requests waiting in the engine.",
            labels=["name", "model_server_endpoint"],
        )
        requests = GaugeMetricFamily(
            "llm_d_epp_inflight_requests", "Unfinished requests of the endpoint.", labels=_LOAD_LABELS
        )
        tokens = GaugeMetricFamily(
            "llm_d_epp_inflight_tokens", "Prompt tokens of its unfinished requests.", labels=_LOAD_LABELS
        )
        queued_tokens, _, running_requests, *_ = fleet.ledger.block[:, slots]
        for at, (_, endpoint) in enumerate(members):
            if not np.isnan(waiting[at]):
                queues.add_metric([self._pool, endpoint.address], float(waiting[at]))
            labels = [endpoint.address, "", "load-ledger", FAIRNESS_ID, PRIORITY]
            requests.add_metric(labels, float(running_requests[at]))
            tokens.add_metric(labels, float(queued_tokens[at]))
        yield from (queues, requests, tokens)
        if self._saturation is not None:
            saturation = GaugeMetricFamily(
                "llm_d_epp_flow_control_pool_saturation",
                "How saturated the pool is; from 1 on, requests of negative priority are refused.",
                labels=["inference_pool", "stage"],
            )
            saturation.add_metric([self._pool, "effective"], self._saturation(now_s))
            yield saturation
        size = GaugeMetricFamily(
            "llm_d_epp_prefix_indexer_size",
            "Entries of the prefix index.",
            labels=["plugin_name", "plugin_type"],
        )
        size.add_metric(["prefix-index", "prefix-index"], float(fleet.index.stats().blocks))
        yield size

    def _of_pool(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"llm_d_epp_{name}", text, labels=["name"])
        family.add_metric([self._pool], value)
        return family


def _mean(column: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation of the known values; 0 and 0 when none is known, as llm-d shows it."""
    known = column[~np.isnan(column)]
    return (float(known.mean()), float(known.std())) if known.size else (0.0, 0.0)
