"""The pool at run time: the endpoints file, or a cluster, becomes endpoints, pollers and Envoy's EDS file.

Owns which endpoints are known, and which of them Envoy has had time to read in the EDS file. An unusable file
keeps the last good pool; an explicit empty list empties it. A pool is taken whole or not at all.

The EDS file is written whenever the pool, or what its host names resolve to, changes. A host name is written
as its address, with its own name for TLS; one that does not resolve is left out. While the file cannot be
written endpoints are chosen all the same: Envoy passes over an endpoint that it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from epp.config.eds import eds_content, peer_name
from epp.config.pool import EndpointSpec, parse_pool, roles_of
from epp.errors import ConfigError
from epp.feeds.files import read_file, replace_file
from epp.feeds.keep_alive import TokenFile
from epp.feeds.poll import PROBES_AT, Poller, PollSchedule, target_of, with_credentials_of
from epp.threads import in_daemon_thread
from epp.types import Role, answers, ranked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.feeds.model_lists import ModelLists
    from epp.feeds.poll import SignalFeed, Target
    from epp.feeds.resolve import Resolver
    from epp.metrics.metrics import Metrics
    from epp.schedule.scheduler import Scheduler
    from epp.signals.metrics_text import EngineSample
    from epp.threads import Tasks
    from epp.types import Endpoint

    class Peers(Protocol):
        """Adds peer regions to a pool; ``peers`` are their addresses."""

        peers: dict[str, str]

        def pool(self, specs: Mapping[str, EndpointSpec]) -> dict[str, EndpointSpec]: ...  # noqa: D102
        def target(self, address: str) -> Target | None: ...  # noqa: D102


#: From writing a new endpoint to the EDS file until it may be chosen, so that Envoy knows it by then; one
#: whose models no other endpoint serves may be chosen at once.
EDS_DELAY_S = 1.0
#: Longest wait for host names at the start; those that resolve later come into the file then.
NAMES_S = 3.0
#: Time from a write that failed to the next try.
EDS_RETRY_S = 5.0

log = logging.getLogger(__name__)


class PoolFeed:
    """Applies contents of the endpoints file.

    Args:
        config: where the endpoints come from and go to, probes, scrapes, relays.
        scheduler: follows the pool.
        resolver: likewise.
        lists: asks the engines of the pool for their models.
        sink: where the pollers' results go.
        tasks: runs the pollers.
        metrics: counted into.
        clock: the time.
        base: folder that paths in the configuration are relative to.
        regions: adds peer regions to the pool, where regions are peers.
    """

    def __init__(
        self,
        config: Config,
        *,
        scheduler: Scheduler,
        resolver: Resolver,
        lists: ModelLists,
        sink: SignalFeed,
        tasks: Tasks,
        metrics: Metrics,
        clock: Clock,
        base: Path,
        regions: Peers | None = None,
    ) -> None:
        settings, relays = config.pool, None if regions is not None else config.relays
        self._resolver, self._relays, self._regions = resolver, relays, regions
        self._source = str(base / settings.file)
        self._scheduler, self._sink, self._tasks = scheduler, sink, tasks
        self._probe, self._scrape = config.probe, with_credentials_of(config.scrape, base)
        self._metrics, self._clock, self._base = metrics, clock, base
        self._endpoints: dict[str, Endpoint] = {}
        self._roles: dict[str, str] = {}  # by address, as engines tell them
        self._eds: EdsFile | None = None
        # Relays are what Envoy knows then, not endpoints.
        if settings.eds_file and settings.kubernetes is None and not (relays and relays.regions):
            self._eds = EdsFile(
                base / settings.eds_file,
                delay_s=EDS_DELAY_S,
                resolver=resolver,
                metrics=metrics,
                on_known=self._offer,
                forwards=() if regions is None else tuple(regions.peers),
            )
        self._pollers: dict[str, Target] = {}
        self._lists = lists
        self._tokens: dict[str, TokenFile] = {}
        scheduler.datastore.engine.on_sample["roles"] = self._told_role
        self._probes = PollSchedule(self._probe.interval_s, PROBES_AT)
        self._scrapes = PollSchedule(self._scrape.interval_s)

    @property
    def size(self) -> int:
        """Endpoints known, draining ones included."""
        return len(self._endpoints)

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
            log.error("%s; %d endpoints stay as they were", error, len(self._endpoints))  # noqa: TRY400
            return
        self._metrics.file_good("endpoints")
        self.apply({address: with_credentials_of(spec, self._base) for address, spec in specs.items()})

    def apply(self, specs: Mapping[str, EndpointSpec], aliases: Mapping[str, str] | None = None) -> None:
        """Make these the pool; ``aliases`` are further addresses of them, to their own."""
        if self._regions is not None:
            specs = self._regions.pool(specs)
        endpoints = {each.address: each for spec in specs.values() for each in spec.endpoints()}
        targets = {address: self._target(address, spec) for address, spec in specs.items()}
        gone = self._endpoints.keys() - endpoints.keys()
        new = endpoints.keys() - self._endpoints.keys()
        self._endpoints = endpoints
        self._offer()
        for address, spec in specs.items():
            for name in ranked(address, spec.ranks):
                self._scheduler.datastore.assume_rtt(name, spec.rtt_ms)
        self._resolver.set_pool(endpoints)
        self._resolver.set_aliases(aliases or {})
        self._tell_envoy()
        for address in gone:
            self._roles.pop(address, None)
            self._metrics.forget_endpoint(address)
        for address in new:
            self._metrics.requests.new_endpoint(address)
        for endpoint in endpoints.values():
            self._metrics.requests.models.keep(endpoint.models)
        self._run_pollers(targets)
        log.info("pool: %d endpoints, %d new, %d gone", len(endpoints), len(new), len(gone))

    def _target(self, address: str, spec: EndpointSpec) -> Target:
        peer = None if self._regions is None else self._regions.target(address)
        return peer or target_of(address, spec, self._scrape, self._relays)

    def _tell_envoy(self) -> None:
        """Write for Envoy who answers: it may fall back to anyone whom it knows."""
        if self._eds is not None:
            self._eds.set_pool([each for each in self._endpoints.values() if self._answers(each)])

    def _answers(self, endpoint: Endpoint) -> bool:
        return answers(self._scheduler.policy.roles(self._with_listed(endpoint)))

    def _offer(self) -> None:
        """Give the picker the pool; an endpoint that Envoy does not know yet takes no requests.

        One whose models no other endpoint serves takes them at once: without it every request for them would
        be refused as one for an unknown model; Envoy answers 503 until it has read the file.
        """
        eds, endpoints = self._eds, list(self._endpoints.values())
        if eds is not None:
            serving = [each for each in endpoints if eds.knows(each.address) and not each.draining]
            endpoints = [
                replace(endpoint, draining=True)
                if not eds.knows(endpoint.address)
                and self._answers(endpoint)
                and any(not each.models or endpoint.models <= each.models for each in serving)
                else endpoint
                for endpoint in endpoints
            ]
        self._scheduler.set_pool([self._with_listed(each) for each in endpoints], self._clock.mono_s())

    def _listed(self, address: str, names: Collection[str]) -> None:
        """Send an endpoint requests for what its engine lists, by public names where the pool has some."""
        for _ in range(self._scheduler.filters.listed(address, names)):
            self._metrics.endpoint_event(address, "model-refused")
        endpoint, known = self._endpoints.get(address), self._scheduler.datastore.member(address)
        if endpoint and known and self._with_listed(endpoint).models != known[1].models:
            self._offer()
        self._lists.changed(self._scheduler.filters.serves)

    def _told_role(self, slot: int, sample: EngineSample, now_s: float) -> None:  # noqa: ARG002 - a listener
        """Take an engine's word for its role, where the pool says none; a sample without one says nothing."""
        address, told = self._scheduler.datastore.address_of(slot) or "", sample.role
        if told and address in self._endpoints and roles_of(told) != roles_of(self._roles.get(address, "")):
            self._roles[address] = told
            self._offer()
            self._tell_envoy()

    def _with_listed(self, endpoint: Endpoint) -> Endpoint:
        """Add what an engine lists to what the pool says; a request that names no model is for none of it."""
        known = self._scheduler.datastore.member(endpoint.address)
        if role := self._roles.get(endpoint.address):
            told = endpoint.roles or roles_of(role)
            endpoint = replace(endpoint, roles=told, prefills=role != Role.DECODE)
        if known is None or not endpoint.models:
            return endpoint
        listed = frozenset(self._scheduler.datastore.listed_models(known[0]))
        further = listed.difference(endpoint.models, endpoint.served_names.values())
        return replace(endpoint, models=endpoint.models | further, adapters=endpoint.adapters | further)

    def _run_pollers(self, wanted: Mapping[str, Target]) -> None:
        self._probes.spread(len(wanted))
        self._scrapes.spread(len(wanted))
        for address in [a for a, target in self._pollers.items() if wanted.get(a) != target]:
            for endpoint in self._pollers.pop(address).endpoints:
                self._lists.engines.pop(endpoint, None)
                # Of other names, or of none: what was found of these says nothing any more.
                self._metrics.forget("epp_endpoint_model_mismatch", endpoint=endpoint)
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
                    on_models=self._listed,
                )
                if self._probe.interval_s and not target.ready_path:
                    self._lists.engines |= dict.fromkeys(target.endpoints, poller.list_models)
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


class EdsFile:
    """Writes the file, and says which endpoints Envoy knows.

    Args:
        path: the file.
        delay_s: seconds from a write until Envoy has read it.
        resolver: host names to addresses.
        metrics: counted into.
        on_known: called when Envoy knows further endpoints.
        forwards: addresses at which Envoy takes requests for peer regions; it knows them from its start.
    """

    def __init__(
        self,
        path: Path,
        *,
        delay_s: float,
        resolver: Resolver,
        metrics: Metrics,
        on_known: Callable[[], None],
        forwards: Collection[str] = (),
    ) -> None:
        self._path, self._delay_s, self._resolver = path, delay_s, resolver
        self._forwards = forwards
        self._metrics, self._on_known = metrics, on_known
        self._endpoints: Sequence[Endpoint] | None = None
        self._content: bytes | None = None
        self._written: frozenset[str] = frozenset()
        self._known: frozenset[str] | None = None  # None until the first file is written
        self._failing = False
        self._changed = asyncio.Event()
        resolver.on_change["pool"] = self._changed.set

    def set_pool(self, endpoints: Sequence[Endpoint]) -> None:
        """Set the pool; it is written soon."""
        self._endpoints = endpoints
        self._changed.set()

    def knows(self, address: str) -> bool:
        """Whether Envoy has had time to read of an endpoint; of everyone until `start`."""
        return self._known is None or address in self._known

    async def start(self) -> None:
        """Write the file; where an Envoy may follow an older one, wait until it has read this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NAMES_S):
                while self._resolver.unanswered:
                    self._changed.clear()
                    await self._changed.wait()
        with contextlib.suppress(OSError):
            self._content = await in_daemon_thread(read_file, self._path)
        before = self._content
        new = await self._write()
        if before not in (None, self._content):
            await asyncio.sleep(self._delay_s)
        self._now_known(new)

    async def run(self) -> None:
        """Write changes for ever."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EDS_RETRY_S if self._failing else None):
                    await self._changed.wait()
            self._changed.clear()
            new = await self._write()
            if new:
                loop.call_later(self._delay_s, self._now_known, new)

    async def _write(self) -> frozenset[str]:
        """Write the pool as it is now, where that is not what is there; returns the endpoints new in it."""
        if self._endpoints is None:  # no pool yet: the one that an earlier process wrote stays
            return frozenset()
        hosts = {
            endpoint.address: replace(endpoint, address=address, server_name=peer_name(endpoint))
            for endpoint in self._endpoints
            if (address := self._resolver.resolved(endpoint.address)) is not None
        }
        by_address = {host.address: host for host in hosts.values()}  # of ranks one
        content = eds_content(by_address.values(), self._forwards)
        try:
            if content != self._content:
                await in_daemon_thread(replace_file, self._path, content)
        except OSError as error:
            self._failed(error)
        else:
            self._content, self._failing = content, False
            self._metrics.file_good("eds")
        new = frozenset(hosts) - self._written
        self._written = frozenset(hosts)
        if self._known is not None:
            self._known &= self._written
        return new

    def _failed(self, error: OSError) -> None:
        if self._failing:
            return
        self._failing = True
        self._metrics.file_failed("eds")
        log.error(
            "pool.eds_file: cannot write %s: %s; Envoy keeps the endpoints that it has. Name a file that can"
            " be written, or none (pool: {eds_file: ''}) where Envoy does not read it",
            self._path,
            error,
        )

    def _now_known(self, new: frozenset[str]) -> None:
        self._known = ((self._known or frozenset()) | new) & self._written
        self._on_known()
