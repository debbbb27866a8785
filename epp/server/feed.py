"""Measurements into signals: what probes and scrapes found, in the words of the stores.

Owns the rule by which a restarted engine is noticed and what then is forgotten.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.server.metrics import Metrics
    from epp.server.poll import ListedModel
    from epp.signals.fleet import Fleet
    from epp.signals.metrics_text import EngineSample

log = logging.getLogger(__name__)

#: How many of an engine's own names a log line lists.
_NAMED = 5


class SignalFeed:
    """The `Sink` of the pollers. Reports on endpoints that left the pool are dropped.

    Args:
        fleet: the stores.
        metrics: counted into.
        process_started: called with a slot and the Unix time since which its engine runs, at every scrape.
        serve: called with what public names are served from, at every listing: a hub id or a folder by name.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        process_started: Callable[[int, float], None] | None = None,
        serve: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._fleet, self._metrics = fleet, metrics
        self._process_started, self._serve = process_started, serve
        self._unknown: dict[str, frozenset[str]] = {}

    def probed(self, address: str, rtt_ms: float | None, now_s: float) -> None:
        """Take an answer to a probe; its RTT is None when the connection was not warm."""
        slot = self._fleet.slot_of(address)
        if slot is None:
            return
        if rtt_ms is not None:
            self._fleet.rtt.observe(slot, rtt_ms, now_s)
        if self._fleet.health.success(slot, now_s):
            log.info("endpoint %s is back", address)

    def probe_failed(self, address: str, problem: str, now_s: float) -> None:
        """Count an endpoint that did not answer, or with a server error."""
        slot = self._fleet.slot_of(address)
        if slot is None:
            return
        self._metrics.endpoint_event(address, "probe-failed")
        if self._fleet.health.failure(slot, "probe", now_s):
            self._metrics.endpoint_event(address, "ejected")
            log.warning("endpoint %s is ejected: %s", address, problem)

    def scraped(self, address: str, sample: EngineSample, now_s: float) -> None:
        """Take what the metrics of an endpoint say."""
        slot = self._fleet.slot_of(address)
        if slot is None:
            return
        if self._fleet.engine.update(slot, sample, now_s):
            self._metrics.endpoint_event(address, "restarted")
            log.warning("endpoint %s restarted: its cache and leases are forgotten", address)
            self._fleet.restart(address, now_s)
        if self._process_started is not None and sample.process_start_time_s is not None:
            self._process_started(slot, sample.process_start_time_s)
        if sample.kv_capacity_tokens:
            self._fleet.learn_capacity(slot, sample.kv_capacity_tokens)

    def models_listed(self, address: str, unknown: frozenset[str], listed: Mapping[str, ListedModel]) -> None:
        """Take the models that an engine lists; say once which names it is asked for and does not know."""
        slot = self._fleet.slot_of(address)
        if slot is None:
            return
        self._metrics.requests.models.keep(listed)
        self._fleet.learn_context(slot, max((one.context_tokens or 0 for one in listed.values()), default=0))
        if self._serve is not None:
            self._serve(self._roots(slot, listed))
        self._metrics.value("epp_endpoint_model_mismatch", address).value = float(len(unknown))
        if unknown and self._unknown.get(address) != unknown:
            log.error(
                "endpoint %s does not serve %s, requests for it fail there; it serves %s: correct 'models' or"
                " 'adapters' in the endpoints file, or start the engine with these names",
                address,
                ", ".join(sorted(unknown)),
                ", ".join(sorted(listed)[:_NAMED]),
            )
        self._unknown[address] = unknown
        if len(self._unknown) > len(self._fleet):  # some of them left
            here = {endpoint.address for _, endpoint in self._fleet.members}
            self._unknown = {name: told for name, told in self._unknown.items() if name in here}

    def _roots(self, slot: int, listed: Mapping[str, ListedModel]) -> dict[str, str]:
        """Find what the models of an endpoint are served from, by public name; of an adapter, its base."""
        endpoint = dict(self._fleet.members)[slot]
        roots = {}
        for name in endpoint.models or listed:
            engine_name = endpoint.served_name(name)
            model = listed.get(engine_name)
            if model is not None and model.parent in listed:
                engine_name, model = model.parent, listed[model.parent]
            if model is not None:
                roots[name] = model.root or engine_name
        return roots

    def scrape_failed(self, address: str, problem: str, now_s: float) -> None:  # noqa: ARG002
        """Count a scrape that failed."""
        slot = self._fleet.slot_of(address)
        if slot is None:
            return
        self._metrics.endpoint_event(address, "scrape-failed")
        log.debug("no metrics from %s: %s", address, problem)
