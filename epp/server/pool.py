"""The pool at run time: the endpoints file, or a cluster, becomes endpoints, pollers and readiness.

Owns which endpoints are known. An unusable file keeps the last good pool; an explicit empty list empties it.
A pool is taken whole or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, parse_pool
from epp.errors import ConfigError
from epp.server.client_credentials import TokenFile
from epp.server.eds import EdsFile
from epp.server.poll import Poller, new_beats, target_of, with_credentials_of
from epp.signals.rtt import check_assumed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.relays import Relays
    from epp.config.schema import Pool, Probe, Scrape
    from epp.schedule.picker import Picker
    from epp.server.metrics import Metrics
    from epp.server.poll import Sink, Target
    from epp.server.resolve import Resolver
    from epp.server.tasks import Tasks
    from epp.signals.endpoint import Endpoint

log = logging.getLogger(__name__)


class PoolFeed:
    """Applies contents of the endpoints file.

    Args:
        picker: told of every change.
        sink: where the pollers' results go.
        tasks: runs the pollers.
        probe: the probes' settings.
        scrape: the scrapes' settings.
        metrics: counted into.
        clock: the time.
        settings: where the endpoints come from, and where they are written for Envoy.
        base: folder that paths in them are relative to.
        resolver: told of the addresses.
        relays: the way to each region.
    """

    def __init__(
        self,
        *,
        picker: Picker,
        sink: Sink,
        tasks: Tasks,
        probe: Probe,
        scrape: Scrape,
        metrics: Metrics,
        clock: Clock,
        settings: Pool,
        base: Path,
        resolver: Resolver,
        relays: Relays | None = None,
    ) -> None:
        self._resolver, self._relays = resolver, relays
        self._source = str(base / settings.file)
        self._picker, self._sink, self._tasks = picker, sink, tasks
        self._probe, self._scrape = probe, scrape
        self._metrics, self._clock, self._base = metrics, clock, base
        self._specs: dict[str, EndpointSpec] = {}
        self._endpoints: list[Endpoint] = []
        self._eds: EdsFile | None = None
        # Relays are what Envoy knows then, not endpoints.
        if settings.eds_file and settings.kubernetes is None and not (relays and relays.regions):
            self._eds = EdsFile(
                base / settings.eds_file,
                delay_s=settings.eds_delay_s,
                resolver=resolver,
                metrics=metrics,
                on_known=self._offer,
            )
        self._pollers: dict[str, Target] = {}
        self._tokens: dict[str, TokenFile] = {}
        self._beats = new_beats()

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
        """New content of the file; None when it is gone."""
        try:
            specs = parse_pool(text, self._source)
        except ConfigError as error:
            self._metrics.file_failed("endpoints")
            log.error("%s; %d endpoints stay as they were", error, len(self._specs))  # noqa: TRY400
            return
        self._metrics.file_good("endpoints")
        self.apply({address: with_credentials_of(spec, self._base) for address, spec in specs.items()})

    def apply(self, specs: Mapping[str, EndpointSpec], aliases: Mapping[str, str] | None = None) -> None:
        """Make these the pool; ``aliases`` are further addresses of them, to their own.

        Raises:
            ValueError: an entry that no source of entries lets pass; nothing is changed.
        """
        # All that an entry can fail in comes before the first change: no half pool is ever in force.
        endpoints = [spec.endpoint() for spec in specs.values()]
        targets = {
            address: target_of(address, spec, self._scrape, self._relays) for address, spec in specs.items()
        }
        for spec in specs.values():
            check_assumed(spec.rtt_ms)
        for address in (*specs, *(aliases or ())):
            split_address(address)
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
        for beat, interval_s in zip(
            self._beats, (self._probe.interval_s, self._scrape.interval_s), strict=True
        ):
            beat.share(interval_s, len(self._specs))
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
                    sink=self._sink,
                    clock=self._clock,
                    token=self._tokens.get(target.bearer_token_file),
                    beats=self._beats,
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
