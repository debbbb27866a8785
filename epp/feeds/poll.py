"""Probes, scrapes and the list of models: one poller per address over one pinned open connection.

Owns the HTTP client side towards engines, and the rule by which a restarted engine is noticed and what then
is forgotten. Feeds what it measures into the picker's signals and knows no formula. An RTT sample counts only
when no connection had to be opened for it: the published numbers of others are mostly connection set-up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from epp.apis.listed_models import parse_models
from epp.config.address import join_address, split_address
from epp.config.relays import RELAY_NAME
from epp.extproc.messages import DESTINATION_HEADER
from epp.feeds.keep_alive import KeepAlive, client_tls
from epp.keyed_uniform import keyed_uniform
from epp.signals.metrics_text import MetricsReader, gpu_utilization, is_exposition
from epp.signals.retry_after import PEER_PAUSE_S
from epp.threads import in_daemon_thread
from epp.types import ranked

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from pathlib import Path

    from epp.apis.listed_models import ListedModel
    from epp.clock import Clock
    from epp.config.pool import EndpointSpec
    from epp.config.relays import Relays
    from epp.config.schema import Probe, Scrape
    from epp.feeds.keep_alive import Answer, TokenFile
    from epp.metrics.metrics import Metrics
    from epp.signals.datastore import Datastore
    from epp.signals.metrics_text import EngineSample

_Credentials = TypeVar("_Credentials", "Scrape", "EndpointSpec")

#: Adapters come and go while engines run, and an engine may be started again with another model.
MODELS_INTERVAL_S = 60.0
#: Shortest time between two questions for them, whoever wants to know.
MODELS_PAUSE_S = 1.0
#: What llm-d calls who scrapes, and who reads it.
_PLUGINS = {
    "scrape": ("metrics-data-source", "core-metrics-extractor"),
    "gpu-scrape": ("dcgm-data-source", "dcgm-extractor"),
}
#: Moments in an interval at which probes or scrapes begin, and endpoints that may share one in a large pool.
SLOTS, MAX_PER_SLOT = 20, 8
#: Where in a slot probes begin: away from scrapes, at intervals as by default.
PROBES_AT = 0.25
#: After an answer that took longer than the interval.
SHORTEST_PAUSE_S = 0.01
#: After a fault of the picker's own: whoever reads the log needs it told now and then, not each interval.
FAULT_PAUSE_S = 10.0

#: Where engines show their metrics, in the order in which they are asked. TensorRT-LLM shows them at the
#: second, and JSON of its iterations at the first; NVIDIA's NIM shows them at the third.
METRICS_PATHS = ("/metrics", "/prometheus/metrics", "/v1/metrics")

#: How many of an engine's own names a log line lists.
_NAMED = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What a poller needs of an endpoint.

    The picker speaks to a relay as the global Envoy does, with its certificate, but over HTTP/1.1 and a
    connection for each poller.

    Attributes:
        address: canonical ``host:port``.
        base_path: what stands before its paths.
        tls: whether it is asked over TLS.
        server_name: SNI and certificate name, None for the host itself.
        ca_file: CA bundle, the system's when empty.
        insecure: whether it may show any certificate.
        bearer_token_file: token file, none when empty.
        engine_names: names under which its engine is asked for models, any when empty.
        relay: ``host:port`` of the relay that it is asked through, empty for directly.
        cert_file: certificate to show, none when empty.
        key_file: its private key.
        ready_path: of a peer region what its Envoy answers itself: that is probed, and nothing scraped.
        metrics_paths: where its metrics may be.
        ranks: data-parallel ranks behind the address, each an endpoint.
    """

    address: str
    tls: bool
    server_name: str | None
    ca_file: str
    bearer_token_file: str
    engine_names: frozenset[str] = frozenset()
    relay: str = ""
    cert_file: str = ""
    key_file: str = ""
    ready_path: str = ""
    metrics_paths: tuple[str, ...] = METRICS_PATHS
    insecure: bool = False
    base_path: str = ""
    ranks: int = 1

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Name the endpoints of which it tells."""
        return ranked(self.address, self.ranks)

    def context(self) -> ssl.SSLContext | None:
        """Make what a connection is opened with, None for plaintext; reads files, so it may block.

        Raises:
            ValueError: a certificate or the key cannot be used.
        """
        if not self.tls:
            return None
        return client_tls(self.ca_file, self.cert_file, self.key_file, insecure=self.insecure)


def with_credentials_of(section: _Credentials, base: Path) -> _Credentials:
    """Resolve the files of the scrape section, or of an endpoint's entry, relative to a folder."""
    files = {name: getattr(section, name) for name in ("ca_file", "bearer_token_file")}
    beside = {name: str(base / file) for name, file in files.items() if file}
    return msgspec.structs.replace(section, **beside)


def target_of(address: str, spec: EndpointSpec, scrape: Scrape, relays: Relays | None = None) -> Target:
    """Describe an endpoint to poll: its own credentials, else the scrape section's; its relay, if any."""
    endpoint, path = spec.endpoint(), spec.metrics_path or scrape.path
    target = Target(
        address,
        tls=spec.tls,
        server_name=spec.server_name or None,
        ca_file=spec.ca_file or scrape.ca_file,
        bearer_token_file=spec.bearer_token_file or scrape.bearer_token_file,
        engine_names=frozenset(endpoint.served_name(name) for name in endpoint.models),
        metrics_paths=(path,) if path else METRICS_PATHS,
        insecure=scrape.insecure and not spec.ca_file,
        base_path=spec.base_path,
        ranks=spec.ranks,
    )
    if relays is None or spec.region not in relays.regions:
        return target
    return through(target, relays, spec.region, RELAY_NAME)


def through(target: Target, relays: Relays, region: str, name: str) -> Target:
    """Poll a target through the Envoy before a region, whose certificate is for a name."""
    return replace(
        target,
        relay=relays.addresses(region)[0],
        tls=True,
        server_name=name,
        ca_file=relays.ca_file,
        cert_file=relays.cert_file,
        key_file=relays.key_file,
        insecure=False,
    )


def check_served(served: str, wanted: str) -> None:
    """Hold who answered, empty where the relay does not say, against who was asked.

    A relay that cannot reach the endpoint asked for lets another of its region answer.

    Raises:
        ConnectionError: it was another endpoint.
    """
    if served not in ("", wanted):
        raise ConnectionError(f"the relay did not reach {wanted}: {served} answered")


class PollSchedule:
    """When endpoints are asked: each once an interval, at a place of its own, a few together.

    What runs alone every few milliseconds finds the processor's caches taken by others each time, and more
    than a few would keep requests waiting.

    Args:
        interval_s: between two questions to one endpoint, 0 for none.
        offset: where between two slots questions begin, as a share of a slot.

    Attributes:
        slot_s: between two moments at which questions begin; 0 for any moment.
    """

    def __init__(self, interval_s: float, offset: float = 0.0) -> None:
        self.interval_s, self._offset = interval_s, offset
        self.slot_s = 0.0

    def spread(self, endpoints: int) -> None:
        """Divide the interval for so many endpoints."""
        self.slot_s = self.interval_s * min(1.0 / SLOTS, MAX_PER_SLOT / max(endpoints, 1))

    def pause_s(self, started_s: float, now_s: float, place: float) -> float:
        """Compute the pause until an endpoint's next turn.

        All are asked at once at start, and all are late together where the process was held up; each returns
        to its own place. What was asked within half an interval before its turn is asked at the next.

        Args:
            started_s: when it was asked the last time.
            now_s: when that was over.
            place: its place in the interval, at least 0 and below 1.
        """
        turns = round(started_s / self.interval_s - place) + 1
        next_s = max((turns + place) * self.interval_s, now_s + SHORTEST_PAUSE_S)
        if self.slot_s <= 0.0:
            return next_s - now_s
        slot_s = (round(next_s / self.slot_s - self._offset) + self._offset) * self.slot_s
        return slot_s - now_s if slot_s > now_s else slot_s + self.slot_s - now_s


class Poller:
    """Probes and scrapes one endpoint for ever.

    Args:
        target: the endpoint.
        probe: path of probes, and the time limit of all questions.
        scrape: path of scrapes.
        probes: when probes begin.
        scrapes: when scrapes begin.
        sink: where results go.
        clock: the time.
        token: of the target's `bearer_token_file`, followed by the caller; None without one.
        known_as: from an endpoint to what a relay calls it.
        on_models: called with the address and the names that the engine lists, none where it lists nothing.
    """

    def __init__(
        self,
        target: Target,
        *,
        probe: Probe,
        scrape: Scrape,
        sink: SignalFeed,
        clock: Clock,
        probes: PollSchedule,
        scrapes: PollSchedule,
        token: TokenFile | None = None,
        known_as: Callable[[str], str] = str,
        on_models: Callable[[str, Collection[str]], None] | None = None,
    ) -> None:
        self._target, self._probe, self._scrape = target, probe, scrape
        self._probes, self._scrapes = probes, scrapes
        self._sink, self._clock, self._known_as, self._token = sink, clock, known_as, token
        self._on_models = on_models
        self._lister: KeepAlive | None = None
        self._listing, self._listed_s = asyncio.Lock(), -math.inf
        alone = target.ranks == 1
        self._readers = {
            name: MetricsReader(None if alone else rank, target.ranks)
            for rank, name in enumerate(target.endpoints)
        }
        #: The first is asked: the one that was found, or else the next to try.
        self._metrics_paths = deque(target.metrics_paths)

    async def run(self) -> None:
        """Poll until cancelled."""
        works: list[Callable[[KeepAlive], Awaitable[None]]] = []
        engine = not self._target.ready_path
        for schedule, what, once, wanted in (
            (self._probes, "probe", self._probe_once, True),
            (self._scrapes, "scrape", self._scrape_once, engine),
        ):
            if schedule.interval_s and wanted:
                works.append(partial(self._kept, partial(self._every, schedule, what, once), what))
        if self._probes.interval_s and engine:
            works.append(partial(self._kept, self._check_models, ""))
        if self._token is not None:
            await self._token.first_read()
        connections = [await self._connected() for _ in works]  # opened when first asked
        if self._scrapes.interval_s and self._scrape.gpu_port and engine:
            host, _ = split_address(self._target.address)
            exporter = join_address(host, self._scrape.gpu_port)
            connections.append(KeepAlive(exporter, tls=None, server_name=None))
            every = partial(self._every, self._scrapes, "gpu-scrape", self._gpu_once)
            works.append(partial(self._kept, every, "gpu-scrape"))
        try:
            await asyncio.gather(
                *(work(connection) for work, connection in zip(works, connections, strict=True))
            )
        finally:
            for connection in connections:
                connection.close()
            await asyncio.sleep(0)  # sockets close one turn of the loop later

    async def _kept(self, work: _Work, what: str, connection: KeepAlive) -> None:
        """Begin a work again, after a while, that raised what nobody foresaw: a fault of the picker's own."""
        while True:
            try:
                await work(connection)
            except Exception as error:
                log.exception("polling %s failed, and goes on in %g s", self._target.address, FAULT_PAUSE_S)
                if what:
                    self._failed(what, _problem(error))
            connection.close()
            await asyncio.sleep(FAULT_PAUSE_S)

    async def _connected(self) -> KeepAlive:
        """Make a connection, as soon as the certificates that it needs can be read."""
        target = self._target
        while True:
            try:
                tls = await in_daemon_thread(target.context) if target.tls else None
                return KeepAlive(target.relay or target.address, tls=tls, server_name=target.server_name)
            except (OSError, ValueError) as error:
                problem = _problem(error)
            for schedule, what in ((self._probes, "probe"), (self._scrapes, "scrape")):
                if schedule.interval_s:
                    self._failed(what, problem)
            await asyncio.sleep(self._probes.interval_s or self._scrapes.interval_s)

    async def _ask(self, connection: KeepAlive, path: str) -> Answer:
        """Ask for a page, by its relay if it has one.

        Raises:
            OSError: relay or endpoint cannot be reached in time, or break off, or another endpoint answered.
            ValueError: its answer is no HTTP, or too long.
        """
        headers = {} if self._token is None else self._token.headers()
        path = self._target.base_path + path
        if not self._target.relay or self._target.ready_path:
            return await connection.get(path, headers, self._probe.timeout_s)
        wanted = self._known_as(self._target.address)
        headers = {**headers, DESTINATION_HEADER: wanted}
        answer = await connection.get(path, headers, self._probe.timeout_s)
        check_served(answer.served, wanted)
        return answer

    async def _every(self, schedule: PollSchedule, salt: str, work: _Work, connection: KeepAlive) -> None:
        """Call ``work`` each interval, endpoints spread over it; a slow answer delays, never piles up."""
        place = keyed_uniform(0, self._target.address, salt)
        # The second time comes within an interval of the first: only then is the connection open already.
        sooner_s = schedule.interval_s / 2
        while True:
            started_s = self._clock.mono_s()
            await work(connection)
            await asyncio.sleep(schedule.pause_s(started_s - sooner_s, self._clock.mono_s(), place))
            sooner_s = 0.0

    async def _probe_once(self, connection: KeepAlive) -> None:
        opened = connection.opened
        path = self._target.ready_path or self._probe.path
        answer = await self._answered("probe", self._ask(connection, path))
        if answer is None:
            return
        if answer.status >= 500:
            self._failed("probe", f"status {answer.status}")
            return
        rtt_ms = answer.took_s * 1e3 if opened == connection.opened else None
        for endpoint in self._target.endpoints:
            self._sink.probed(endpoint, rtt_ms, self._clock.mono_s())

    async def _answered(self, what: str, asking: Awaitable[Answer]) -> Answer | None:
        """Wait for an answer; None, and reported, where none comes."""
        try:
            return await asking
        except (OSError, ValueError) as error:
            self._failed(what, _problem(error))
            return None

    async def _scrape_once(self, connection: KeepAlive) -> None:
        """Scrape at a path; where it has no metrics, the next path is asked the next time."""
        path = self._metrics_paths[0]
        answer = await self._answered("scrape", self._ask(connection, path))
        if answer is None:
            return
        samples = {name: reader.read(answer.body) for name, reader in self._readers.items()}
        if answer.status == 200 and any(is_exposition(answer.body, each) for each in samples.values()):
            for endpoint, sample in samples.items():
                self._sink.scraped(endpoint, sample, self._clock.mono_s())
            return
        self._failed("scrape", f"no metrics at {path}, status {answer.status}", answered=answer.status == 200)
        self._metrics_paths.rotate(-1)

    async def _gpu_once(self, exporter: KeepAlive) -> None:
        asking = exporter.get("/metrics", {}, self._probe.timeout_s)
        answer = await self._answered("gpu-scrape", asking)
        if answer is None:
            return
        utilization = gpu_utilization(answer.body) if answer.status == 200 else None
        if utilization is None:
            problem = f"status {answer.status}, without the utilization of a GPU"
            self._failed("gpu-scrape", problem, answered=answer.status == 200)
            return
        for endpoint in self._target.endpoints:
            self._sink.gpu_scraped(endpoint, utilization, self._clock.mono_s())

    async def _check_models(self, connection: KeepAlive) -> None:
        """Ask for the engine's models once it is up, and now and then."""
        self._lister = connection
        while True:
            listed = await self.list_models()
            await asyncio.sleep(self._probe.interval_s if listed is None else MODELS_INTERVAL_S)

    async def list_models(self) -> Mapping[str, ListedModel] | None:
        """Ask for the engine's models, and tell of them; once in `MODELS_PAUSE_S` at most.

        None when it is not up.
        """
        if self._lister is None:
            return None
        async with self._listing:
            await asyncio.sleep(self._listed_s + MODELS_PAUSE_S - self._clock.mono_s())
            self._listed_s = self._clock.mono_s()
            listed = await self._listed(self._lister)
            if listed is None:
                return None
            for endpoint in self._target.endpoints:
                if listed:
                    unknown = self._target.engine_names - listed.keys()
                    self._sink.models_listed(endpoint, unknown, listed)
                if self._on_models is not None:
                    self._on_models(endpoint, listed)
            return listed

    async def _listed(self, connection: KeepAlive) -> dict[str, ListedModel] | None:
        """Ask for the engine's models, none when it does not list them; None when it is not up."""
        try:
            answer = await self._ask(connection, "/v1/models")
        except (OSError, ValueError):
            return None
        connection.close()  # it is not asked again soon
        if answer.status >= 500:
            return None
        return parse_models(answer.body) if answer.status == 200 else {}

    def _failed(self, what: str, problem: str, *, answered: bool = False) -> None:
        for endpoint in self._target.endpoints:
            self._sink.failed(endpoint, what, problem, self._clock.mono_s(), answered=answered)


class _Work(Protocol):
    async def __call__(self, connection: KeepAlive, /) -> None: ...


def _problem(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class SignalFeed:
    """Puts what pollers find into the picker's signals. Reports on endpoints that left the pool are dropped.

    Args:
        datastore: the stores.
        metrics: counted into.
        process_started: called with a slot and the Unix time since which its engine runs, at every scrape.
        serve: called with what public names are served from, at every listing: a hub id or a folder by name.
    """

    def __init__(
        self,
        datastore: Datastore,
        metrics: Metrics,
        process_started: Callable[[int, float], None] | None = None,
        serve: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._datastore, self._metrics = datastore, metrics
        self._process_started, self._serve = process_started, serve
        self._unknown: dict[str, frozenset[str]] = {}

    def probed(self, address: str, rtt_ms: float | None, now_s: float) -> None:
        """Take an answer to a probe; its RTT is None when the connection was a new one."""
        slot = self._datastore.slot_of(address)
        if slot is None:
            return
        if rtt_ms is not None:
            self._datastore.rtt.observe(slot, rtt_ms, now_s)
        if self._datastore.health.success(slot, now_s):
            log.info("endpoint %s is back", address)

    def failed(self, address: str, what: str, problem: str, now_s: float, *, answered: bool = False) -> None:
        """Count a probe or a scrape without a good answer; only probes eject an endpoint, or pause a peer."""
        slot = self._datastore.slot_of(address)
        if slot is None:
            return
        self._metrics.endpoint_event(address, f"{what}-failed")
        if what in _PLUGINS:
            self._count_error(*_PLUGINS[what], answered=answered)
        if what != "probe":
            log.debug("no metrics from %s: %s", address, problem)
        elif self._datastore.is_peer(slot):
            self._datastore.retry_after.pause_for(slot, PEER_PAUSE_S, now_s, f"a probe failed: {problem}")
        elif self._datastore.health.failure(slot, "probe", now_s, f"probes fail, the last: {problem}"):
            self._metrics.endpoint_event(address, "ejected")
            log.warning("endpoint %s is ejected: %s", address, problem)

    def _count_error(self, source: str, extractor: str, *, answered: bool) -> None:
        if answered:
            self._metrics.value("llm_d_epp_datalayer_extract_errors_total", source, extractor).inc()
        else:
            self._metrics.value("llm_d_epp_datalayer_poll_errors_total", source).inc()

    def scraped(self, address: str, sample: EngineSample, now_s: float) -> None:
        """Take what the metrics of an endpoint say."""
        slot = self._datastore.slot_of(address)
        if slot is None:
            return
        if self._datastore.engine.update(slot, sample, now_s):
            self._metrics.endpoint_event(address, "restarted")
            log.warning("endpoint %s restarted: its cache and reservations are forgotten", address)
            self._datastore.restart(address, now_s)
        if self._process_started is not None and sample.process_start_time_s is not None:
            self._process_started(slot, sample.process_start_time_s)
        if sample.kv_capacity_tokens:
            self._datastore.learn_capacity(slot, sample.kv_capacity_tokens)

    def gpu_scraped(self, address: str, utilization: float, now_s: float) -> None:
        """Take the utilization of an endpoint's busiest GPU."""
        slot = self._datastore.slot_of(address)
        if slot is not None:
            self._datastore.engine.update_gpu(slot, utilization, now_s)

    def models_listed(self, address: str, unknown: frozenset[str], listed: Mapping[str, ListedModel]) -> None:
        """Take the models that an engine lists; say once which names it is asked for and does not know."""
        slot = self._datastore.slot_of(address)
        if slot is None:
            return
        self._metrics.requests.models.keep(listed)
        self._datastore.learn_models(slot, listed)
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
        if len(self._unknown) > len(self._datastore):  # some of them left
            here = {endpoint.address for _, endpoint in self._datastore.members}
            self._unknown = {name: told for name, told in self._unknown.items() if name in here}

    def _roots(self, slot: int, listed: Mapping[str, ListedModel]) -> dict[str, str]:
        """Find what the models of an endpoint are served from, by public name; of an adapter, its base."""
        endpoint = dict(self._datastore.members)[slot]
        roots = {}
        for name in endpoint.models or listed:
            engine_name = endpoint.served_name(name)
            model = listed.get(engine_name)
            if model and model.parent and model.parent in listed:
                engine_name, model = model.parent, listed[model.parent]
            if model is not None:
                roots[name] = model.root or engine_name
        return roots
