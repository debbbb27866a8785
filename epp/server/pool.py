"""The pool at run time: the endpoints file, or a cluster, becomes endpoints, pollers and readiness.

Owns which endpoints are known. An unusable file keeps the last good pool; an explicit empty list empties it.
A pool is taken whole or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.pool import EndpointSpec, parse_pool
from epp.errors import ConfigError
from epp.server.client_credentials import TokenFile
from epp.server.eds import EdsFile
from epp.server.poll import PROBES_AT, Poller, PollSchedule, target_of, with_credentials_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.server.core import Core
    from epp.server.metrics import Metrics
    from epp.server.poll import Sink, Target
    from epp.server.process import Tasks
    from epp.types import Endpoint

#: From writing a new endpoint to the EDS file until it is picked, so that Envoy knows it by then; one whose
#: models no other endpoint serves is picked at once.
EDS_DELAY_S = 1.0
log = logging.getLogger(__name__)


class PoolFeed:
    """Applies contents of the endpoints file.

    Args:
        config: where the endpoints come from and go to, probes, scrapes, relays.
        core: its picker and its resolver follow the pool.
        sink: where the pollers' results go.
        tasks: runs the pollers.
        metrics: counted into.
        clock: the time.
        base: folder that paths in the configuration are relative to.
    """

    def __init__(
        self,
        config: Config,
        *,
        core: Core,
        sink: Sink,
        tasks: Tasks,
        metrics: Metrics,
        clock: Clock,
        base: Path,
    ) -> None:
        settings, relays = config.pool, config.relays
        self._resolver, self._relays = core.resolver, relays
        self._source = str(base / settings.file)
        self._picker, self._sink, self._tasks = core.picker, sink, tasks
        self._probe, self._scrape = config.probe, with_credentials_of(config.scrape, base)
        self._metrics, self._clock, self._base = metrics, clock, base
        self._specs: dict[str, EndpointSpec] = {}
        self._endpoints: list[Endpoint] = []
        self._eds: EdsFile | None = None
        # Relays are what Envoy knows then, not endpoints.
        if settings.eds_file and settings.kubernetes is None and not relays.regions:
            self._eds = EdsFile(
                base / settings.eds_file,
                delay_s=EDS_DELAY_S,
                resolver=core.resolver,
                metrics=metrics,
                on_known=self._offer,
            )
        self._pollers: dict[str, Target] = {}
        self._tokens: dict[str, TokenFile] = {}
        self._probes = PollSchedule(self._probe.interval_s, PROBES_AT)
        self._scrapes = PollSchedule(self._scrape.interval_s)

    @property
    def size(self) -> int:
        """Endpoints known, draining ones included."""
        return len(self._specs)

    async def start(self) -> None:
        """Write the pool for Envoy, wait until Envoy has had time to read it, and go on writing changes."""
        if self._eds is not None:
            await self._eds.start()
            self._tasks.start("write the EDS file", self._eds.run())

    def content(self, text: bytes | None) -> None:
        """Take the content of the endpoints file; None when it is gone."""
        try:
            specs = parse_pool(text, self._source)
        except ConfigError as error:
            self._metrics.file_failed("endpoints")
            log.error("%s; %d endpoints stay as they were", error, len(self._specs))  # noqa: TRY400
            return
        self._metrics.file_good("endpoints")
        self.apply({address: with_credentials_of(spec, self._base) for address, spec in specs.items()})

    def apply(self, specs: Mapping[str, EndpointSpec], aliases: Mapping[str, str] | None = None) -> None:
        """Make these the pool; ``aliases`` are further addresses of them, to their own."""
        endpoints = [spec.endpoint() for spec in specs.values()]
        targets = {
            address: target_of(address, spec, self._scrape, self._relays) for address, spec in specs.items()
        }
        gone = self._specs.keys() - specs.keys()
        new = specs.keys() - self._specs.keys()
        self._endpoints = endpoints
        self._offer()
        for address, spec in specs.items():
            self._picker.fleet.assume_rtt(address, spec.rtt_ms)
        self._specs = dict(specs)
        self._resolver.set_pool(specs)
        self._resolver.set_aliases(aliases or {})
        if self._eds is not None:
            self._eds.set_pool(endpoints)
        for address in gone:
            self._metrics.forget_endpoint(address)
        for address in new:
            self._metrics.requests.new_endpoint(address)
        for endpoint in endpoints:
            self._metrics.requests.models.keep(endpoint.models)
        self._run_pollers(targets)
        log.info("pool: %d endpoints, %d new, %d gone", len(specs), len(new), len(gone))

    def _offer(self) -> None:
        """Give the picker the pool; an endpoint that Envoy does not know yet takes no requests.

        One whose models no other endpoint serves takes them at once: without it every request for them would
        be refused, while Envoy sends a request whose pick it does not know to another host.
        """
        eds, endpoints = self._eds, self._endpoints
        if eds is not None:
            serving = [each for each in endpoints if eds.knows(each.address) and not each.draining]
            endpoints = [
                replace(endpoint, draining=True)
                if not eds.knows(endpoint.address)
                and any(not each.models or endpoint.models <= each.models for each in serving)
                else endpoint
                for endpoint in endpoints
            ]
        self._picker.set_pool(endpoints, self._clock.mono_s())

    def _run_pollers(self, wanted: Mapping[str, Target]) -> None:
        self._probes.spread(len(self._specs))
        self._scrapes.spread(len(self._specs))
        for address in [a for a, target in self._pollers.items() if wanted.get(a) != target]:
            del self._pollers[address]
            # Of other names, or of none: what was found of these says nothing any more.
            self._metrics.forget("epp_endpoint_model_mismatch", endpoint=address)
            self._tasks.cancel(_task_name(address))
        self._follow_tokens({target.bearer_token_file for target in wanted.values()} - {""})
        for address, target in wanted.items():
            if address not in self._pollers:
                poller = Poller(
                    target,
                    probe=self._probe,
                    scrape=self._scrape,
                    probes=self._probes,
                    scrapes=self._scrapes,
                    sink=self._sink,
                    clock=self._clock,
                    token=self._tokens.get(target.bearer_token_file),
                    known_as=self._resolver.known_as,
                )
                self._tasks.start(_task_name(address), poller.run())
                self._pollers[address] = target

    def _follow_tokens(self, wanted: set[str]) -> None:
        for path in self._tokens.keys() - wanted:
            del self._tokens[path]
            self._tasks.cancel(f"read {path}")
        for path in wanted - self._tokens.keys():
            self._tokens[path] = token = TokenFile(path)
            self._tasks.start(f"read {path}", token.follow())


def _task_name(address: str) -> str:
    return f"poll {address}"
