"""The server as a whole: builds every part from the configuration, starts and stops them in order.

Owns the wiring and the life cycle, no logic. Start-up errors are `ConfigError`; after that nothing an
operator writes into a watched file can stop the server.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.capability import read_chances
from epp.errors import ConfigError
from epp.feeds.files import AppliedFile, WatchedFile, watch
from epp.feeds.poll import SignalFeed
from epp.feeds.pool import PoolFeed
from epp.metrics.metrics import Metrics
from epp.metrics.read import PickerState, QueueState
from epp.metrics.table import TABLE
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.request.conformance import SteeredDirector
from epp.request.director import Director
from epp.request.first_token import FirstTokenReceiver
from epp.request.relays import RelayPaths
from epp.request.response_sampling import Sampler, section_of
from epp.request.routed_reports import RoutedReports
from epp.request.tokenizers import ServedTokenizers, Tokenizers, load_models
from epp.rpc.accepting import allowed_connections, located
from epp.schedule.admission import AdmissionController
from epp.schedule.decision import to_record
from epp.schedule.late_binding import LateBinding
from epp.schedule.program_gate import UNHELD_S
from epp.schedule.scheduler import Scheduler, SchedulerSettings, datastore_of
from epp.schedule.waiting import in_time
from epp.schedule.weights import WeightBook
from epp.server.grpc import GrpcServer
from epp.server.health_thread import HealthThread, build_app
from epp.server.host import Host
from epp.server.live import Live
from epp.server.live_page import LivePage
from epp.server.process import DecisionIds, hash_secrets, index_of
from epp.server.reload import Reload
from epp.server.tls import Certificates
from epp.threads import Tasks, in_daemon_thread, kept
from epp.tokens.estimate import EstimateCounter
from epp.tokens.optional_parts import OptionalParts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.cluster.messages import Group
    from epp.config.schema import Config
    from epp.extproc.types import HttpRequest
    from epp.feeds.kubernetes import ClusterFeed
    from epp.feeds.kv_events import KvEventFeed
    from epp.feeds.lead import LeadFeed
    from epp.feeds.learned import Learning
    from epp.feeds.restore import IndexRestore
    from epp.records.recorder import FileRecorder
    from epp.request.access_log import Reports
    from epp.request.queueing import Queueing
    from epp.request.regions import Regions
    from epp.request.tracing import Tracing
    from epp.types import RequestInfo

log = logging.getLogger(__name__)

#: Between two looks at reservations that outlived their time; just over the sampler's window.
HOUSEKEEPING_S = 1.05
#: Longest wait at the end for the collector of spans.
FLUSH_S = 2.0
#: Part of the drain after which what still waits is refused.
_REFUSE_AT = 0.8
_ALONE = Host()


def _learn_tokens(
    counter: EstimateCounter, optional: OptionalParts, request: RequestInfo, prompt_tokens: int
) -> None:
    model = request.model
    counted = optional.observe(request, prompt_tokens, counter.bytes_per_token(model))
    counter.observe(model, counted, prompt_tokens)


class App:
    """One picker process.

    Args:
        config: checked configuration.
        base: folder that relative paths of the configuration are relative to.
        source: name of the configuration file, for errors.
        clock: the time.
        host: the other pickers of this host; by default none.

    Attributes:
        addresses: of the listeners once they are open, ``""`` for one that is not configured.

    Raises:
        ConfigError: a value does not fit the policy or a file that it names is missing.
    """

    def __init__(self, config: Config, base: Path, source: str, clock: Clock, host: Host = _ALONE) -> None:
        self._host, self._draining, self._decision_ids = host, False, DecisionIds(host.index)
        self._config, self._base, self._source, self._clock = config, base, source, clock
        self.metrics, self.tasks = Metrics(TABLE, old_names=config.protocol.old_metric_names), Tasks()
        self._secrets = hash_secrets(config, base, source)
        hashers = [BlockHasher(secret, config.prefix.block_bytes) for secret in self._secrets]
        hasher = hashers[0]
        self._recorder, self._index = self._build_recorder(hasher), index_of(config.prefix, hasher)
        counter, optional = EstimateCounter(), OptionalParts()
        self.scheduler = self._build_scheduler(source, hasher, counter, optional)
        self._tokenizers, served = self._build_tokenizers(optional)
        admission = AdmissionController(self.scheduler.datastore, config.saturation, self._priority)
        self._queueing = self._build_queueing(admission.saturation)
        self._regions = regions = self._build_regions(hasher)
        self._kv_events = self._build_kv_events()
        self._relays = RelayPaths(config.relays) if config.relays.regions and regions is None else None
        self._learning, self._tracing = self._build_learning(), self._build_tracing()
        self.director = (SteeredDirector if config.protocol.conformance else Director)(
            config,
            scheduler=self.scheduler,
            counter=counter,
            hasher=hasher,
            metrics=self.metrics,
            recorder=self._recorder,
            clock=clock,
            admission=admission,
            queueing=self._queueing,
            alone=self._host.balancer is None,
            tokenizers=self._tokenizers,
            relays=self._relays,
            regions=regions,
            tracing=self._tracing,
            observers=() if self._learning is None else self._learning.observers,
        )
        self._pool = PoolFeed(
            config,
            scheduler=self.scheduler,
            resolver=self.director.resolver,
            lists=self.director.model_lists,
            sink=SignalFeed(
                self.scheduler.datastore, self.metrics, self._index.process_started, served.look_for
            ),
            tasks=self.tasks,
            metrics=self.metrics,
            clock=clock,
            base=base,
            regions=regions,
        )
        self._cluster = self._build_cluster()
        self._reports: Reports = self.director.outcomes
        self._peers, self._lead = self._build_peers(hashers)
        if self._peers is not None and self._queueing is not None:
            self._peers.index_sync.share_queue(self._queueing.binding)
        self._restore = self._build_restore(hasher)
        self._reload = Reload(config, source, self.scheduler, self.director, admission)
        self._files = self._watched_files()
        self._tls, self._sampler = Certificates(base, source), Sampler(section_of(config.observe), clock)
        self._build_listeners()
        self._show_state(admission, served)

    @property
    def _inference_pool(self) -> str:
        kubernetes = self._config.pool.kubernetes
        return (kubernetes.pool_name if kubernetes else "") or "default"

    def _show_state(self, admission: AdmissionController, served: ServedTokenizers) -> None:
        """Let Prometheus read the state of the parts."""
        state = PickerState(
            self.scheduler,
            self._clock.mono_s,
            self._inference_pool,
            admission.saturation,
            admission.stale_endpoints,
        )
        self.metrics.show("picker", state)
        self.metrics.show("tokenizers", served)
        self.metrics.show("sampler", self._sampler)
        if self._queueing is not None:
            queue = QueueState(
                self._queueing.binding,
                self.scheduler.datastore,
                self._clock.mono_s,
                self._inference_pool,
                self.metrics.requests.flow_label,
            )
            self.metrics.show("queue", queue)
            if queue.binding.queue.attains:
                self.metrics.show("waits", self.metrics)
        if self._kv_events is not None:
            self.metrics.show("kv events", self._kv_events)
        if self._peers is not None:
            self.metrics.show("peers", self._peers)
        if self._regions is not None:
            self.metrics.show("regions", self._regions.link)

    def _build_listeners(self) -> None:
        config, host = self._config, self._host
        reports = host.route(self._reports, self._decision_ids)
        most = allowed_connections(config.listen.max_connections)
        refused = self.metrics.value("epp_connections_closed_total", "first_token", "limit").inc
        self._first_tokens = FirstTokenReceiver(reports, max_connections=most, on_refused=refused)
        self.metrics.receivers["first-token"] = self._first_tokens
        self._grpc = GrpcServer(
            config,
            self._tls,
            self.director,
            self.metrics,
            self._source,
            reports=reports,
            first_tokens=self._first_tokens,
            sampler=self._sampler,
            max_connections=most,
            balancer=host.balancer,
        )
        self._health = HealthThread(
            config.listen,
            self._tls,
            self._source,
            metrics=self.metrics,
            max_connections=most,
            also=host.http,
        )

    def _build_tokenizers(self, optional: OptionalParts) -> tuple[Tokenizers, ServedTokenizers]:
        config, metrics = self._config, self.metrics
        models = load_models(config.tokens, self._base, self._source)
        tokenizers = Tokenizers(
            models,
            config.tokens.budget_ms,
            optional=optional,
            block_bytes=config.prefix.block_bytes,
            on_estimate=lambda reason: metrics.value("epp_token_estimates_total", reason).inc(),
        )
        return tokenizers, ServedTokenizers(models, config.tokens, self._clock.mono_s)

    def _build_queueing(self, saturation: Callable[[float], float]) -> Queueing | None:
        settings = self._config.queue
        if not settings.enabled:
            return None
        from epp.request.queueing import Queueing  # noqa: PLC0415  # only where it is configured

        binding = LateBinding(self.scheduler, settings, saturation)
        if binding.programs is not None:
            where = "" if settings.full_duplex else ", but not in full duplex"
            words = (
                "turns of agents are held for up to %g s%s: clients, gateways and routes must wait as long"
            )
            log.info(words, settings.programs.longest_hold_s, where)
            words = "turns of agents are not held for %g s: callers gave up, the last one after %.1f s"
            binding.programs.on_unheld = partial(log.warning, words, UNHELD_S)
        elif settings.programs.enabled:
            log.warning("turns of agents are not held: queue.programs.longest_hold_s is not above age_s")
        return Queueing(binding, settings.longest_s, self._clock, self.metrics, self._inference_pool)

    def _build_learning(self) -> Learning | None:
        config = self._config
        if not (config.shadow or config.policy.model_file or config.policy.name == "lodestar"):
            return None
        from epp.feeds.learned import Learning  # noqa: PLC0415  # only where it is configured

        return Learning(config, self.scheduler, self.metrics, self._clock, self._source, base=self._base)

    def _build_tracing(self) -> Tracing | None:
        if not self._config.tracing:
            return None
        try:
            from epp.request.tracing import Tracing  # noqa: PLC0415  # only where it is configured
        except ImportError:
            problem, fix = "needs OpenTelemetry's SDK", "pip install 'gorgo-epp[otel]'"
            raise ConfigError(self._source, "tracing", problem, fix) from None
        return Tracing(self._clock)

    def _build_cluster(self) -> ClusterFeed | None:
        settings = self._config.pool.kubernetes
        if settings is None:
            return None
        from epp.feeds.kubernetes import ClusterFeed  # noqa: PLC0415  # only where it is configured

        return ClusterFeed(
            settings,
            base=self._base,
            source=self._source,
            pool=self._pool,
            use_rules=self.director.use_model_rules,
            metrics=self.metrics,
            clock=self._clock,
        )

    def _build_regions(self, hasher: BlockHasher) -> Regions | None:
        if not self._config.federation.region:
            return None
        from epp.request.regions import Regions  # noqa: PLC0415  # only where it is configured

        config, source, clock, datastore = self._config, self._source, self._clock, self.scheduler.datastore
        key_id, metrics = hasher.key_id, self.metrics
        return Regions(config, self._base, source, clock, datastore=datastore, key_id=key_id, metrics=metrics)

    def _build_kv_events(self) -> KvEventFeed | None:
        settings, datastore = self._config.kv_events, self.scheduler.datastore
        if not settings.enabled:
            return None
        try:
            from epp.feeds.kv_events import KvEventFeed  # noqa: PLC0415  # only where it is configured
        except ImportError:
            problem, fix = "needs the package pyzmq", "pip install 'gorgo-epp[kv-events]'"
            raise ConfigError(self._source, "kv_events.enabled", problem, fix) from None
        from epp.prefix_cache.engine_blocks import EngineBlocks  # noqa: PLC0415  # likewise
        from epp.signals.engine_caches import EngineCaches  # noqa: PLC0415  # likewise

        prices = 1.0, settings.cpu_price, settings.disk_price
        index = EngineBlocks(secrets.randbits(64), settings.max_blocks, prices)
        datastore.engine_caches = EngineCaches(index, datastore.adapter_name)
        self._tokenizers.tells_ids = True
        return KvEventFeed(settings, datastore, datastore.engine_caches, self._clock)

    def _build_peers(self, hashers: Sequence[BlockHasher]) -> tuple[Link | None, LeadFeed | None]:
        config = self._config

        def group(hasher: BlockHasher) -> Group:
            from epp.cluster.messages import Group  # noqa: PLC0415  # only where there are others

            kubernetes = config.pool.kubernetes
            pool = config.nats.name or (kubernetes.pool_name if kubernetes else "") or "default"
            own = f"{pool}.{config.federation.region}" if config.federation.region else pool
            return Group(own, config.policy.name, hasher.key_id)

        if not config.nats.url:
            return self._host.link(lambda: group(hashers[0]), self.scheduler.datastore, self._clock), None
        try:
            from epp.cluster.nats_link import NatsLink  # noqa: PLC0415  # likewise
        except ImportError:
            problem, fix = "needs the package nats-py", "pip install 'gorgo-epp[cluster]'"
            raise ConfigError(self._source, "nats.url", problem, fix) from None

        from epp.feeds import lead  # noqa: PLC0415  # likewise

        records, led = self._base / config.records.folder, lead.is_led(config)
        link = NatsLink(
            config.nats,
            group(hashers[0]),
            self.scheduler.datastore,
            self._clock,
            base=self._base,
            source=self._source,
            secrets=self._secrets,
            decision=self._decision_json,
            second=next(map(group, hashers[1:]), None),
            term=lead.read_lead(records).term if led else None,
        )
        reports = self._reports = RoutedReports(
            self._reports, self._decision_ids.maker_of, link.publish_report
        )
        link.hear_reports(self._decision_ids.prefix, reports.take)
        if self._regions is not None:
            self._regions.connect(link, config.nats.name or "default")
        if not led or self._recorder is None:
            return link, None
        files = lead.followed_files(config, self._base)
        feed = lead.LeadFeed(files, records, link.leading, link.publish_content, self._clock)
        link.on_content, link.on_records = feed.take, self._recorder.record
        self._recorder.on_lines = link.publish_records
        return link, feed

    def _decision_json(self, decision_id: str) -> bytes:
        found = self.director.recent.record(decision_id)
        return b"" if found is None else msgspec.json.encode(found)

    async def _preview_json(self, request: HttpRequest) -> bytes:
        return msgspec.json.encode(to_record(await in_time(self.director.preview(request))))

    def _priority(self, objective: str) -> int:
        if self._cluster is not None:
            return self._cluster.priority(objective)
        return self._config.queue.priorities.get(objective, 0)

    def _build_scheduler(
        self, source: str, hasher: BlockHasher, counter: EstimateCounter, optional: OptionalParts
    ) -> Scheduler:
        section = self._config.policy
        policy = create(section.name, section.params, source=source)
        weights = WeightBook(
            policy=policy.name,
            specs=policy.weight_specs,
            configured=section.weights,
            bounds=section.bounds,
            source=source,
        )
        return Scheduler(
            datastore=datastore_of(self._config, self._index),
            policy=policy,
            balance=create("least-request"),
            weights=weights,
            settings=SchedulerSettings.of(self._config),
            new_id=self._decision_ids,
            name_block=hasher.export_id,
            learn=partial(_learn_tokens, counter, optional),
        )

    def _build_recorder(self, hasher: BlockHasher) -> FileRecorder | None:
        records = self._config.records
        if not records.folder:
            return None
        from epp.records.recorder import FileRecorder  # noqa: PLC0415  # only where it is configured

        return FileRecorder(
            self._base / records.folder,
            settings=records,
            hasher=hasher,
            on_drop=self.metrics.value("epp_records_dropped_total").inc,
            on_restart=self.metrics.value("epp_faults_total", "recorder").inc,
        )

    def _build_restore(self, hasher: BlockHasher) -> IndexRestore | None:
        records = self._config.records
        # Without a secret of the deployment nothing that an earlier process wrote can be understood.
        if not (records.folder and self._config.prefix.secret_file):
            return None
        from epp.feeds.restore import IndexRestore  # noqa: PLC0415  # only where it is configured

        return IndexRestore(
            self._base / records.folder,
            index=self._index,
            datastore=self.scheduler.datastore,
            key_id=hasher.key_id,
            clock=self._clock,
        )

    def _watched_files(self) -> list[WatchedFile]:
        config, metrics, weights = self._config, self.metrics, self.scheduler.weights
        files: list[WatchedFile] = []
        if self._cluster is None:
            failed = partial(metrics.file_failed, "endpoints")
            files.append(WatchedFile(self._base / config.pool.file, self._pool.content, failed))

        def weights_changed(changed: bool) -> None:
            if changed:
                log.info("weights in force: %s", weights.current.values)

        # Beside the tuner's file, because the operator's may be mounted read-only.
        beside = self._base / (config.weights_file or config.overrides_file)
        for layer, label, name in (
            ("tuner", "weights", config.weights_file),
            ("override", "overrides", config.overrides_file),
        ):
            if name:
                path, kept = self._base / name, "the last good values stay"
                update: Callable[[bytes | None], bool] = partial(weights.update, layer, source=str(path))
                if layer == "tuner" and self._lead is not None:
                    update = self._lead.checked(label, update)
                last_good = beside.with_name(f"{beside.stem}.last-good-{label}.yaml")
                files.append(
                    AppliedFile(
                        path,
                        label,
                        metrics,
                        parse=update,
                        apply=weights_changed,
                        kept=kept,
                        last_good=last_good,
                    )
                )
        if config.capability.file:
            path = self._base / config.capability.file
            parse = partial(read_chances, source=str(path))
            apply, kept = self.scheduler.datastore.capability.replace, "the last good table stays"
            files.append(AppliedFile(path, "capability", metrics, parse=parse, apply=apply, kept=kept))
        return files if self._learning is None else files + self._learning.files(self._lead)

    def follow(self, file: Path) -> None:
        """Apply changes of the configuration's file, once started."""
        parse, apply, kept = self._reload.parse, self._reload.apply, "the last good configuration stays"
        self._files.append(AppliedFile(file, "config", self.metrics, parse=parse, apply=apply, kept=kept))

    def not_ready(self) -> str:
        """Say why requests should not come here, ``""`` when they should."""
        if self._draining:
            return "draining"
        if self.tasks.failed:
            return "dead tasks: " + ", ".join(sorted(self.tasks.failed))
        if self._cluster is not None:
            if reason := self._cluster.not_ready():
                return reason
        elif not self._pool.size:
            return "no endpoints known"
        if self._restore is not None and self._restore.pending:
            return "rebuilding the prefix index"
        if self._peers is not None and self._peers.index_sync.joining:
            return "asking another picker for the prefix index"
        return ""

    async def start(self, on_stall: Callable[[float, str], None] | None = None) -> None:
        """Read the watched files, open the listeners, start the background work.

        Args:
            on_stall: see `HealthThread.start`.

        Raises:
            ConfigError: an address cannot be bound, or a certificate not be used.
        """
        listen, source = self._config.listen, self._source
        for file in self._files:
            file.check()
        self.tasks.start("resolve names", self.director.resolver.run())
        await self._pool.start()
        routes = build_app(
            health=self._health,
            names=frozenset(map(str.lower, listen.http_names)),
            metrics=self.metrics,
            decision=self._decision_json,
            decided=self._decision_ids.__contains__,
            preview=self._preview_json if listen.serves_ui else None,
            verdict=None if self._recorder is None else self._recorder.record,
            elsewhere=None if self._peers is None else self._peers.find,
        )
        if listen.serves_ui:
            LivePage(self._live()).add_to(routes)
        routes.middlewares.extend(self._host.middlewares)
        self._host.listen()
        http, health = await self._health.start(routes, on_stall)
        first_token, grpc = "", await self._grpc.start()
        if listen.first_token:
            tls = self._tls.context(listen.first_token_tls, "listen.first_token_tls")
            with located(source, "listen.first_token", listen.first_token):
                first_token = self._first_tokens.listen(listen.first_token, tls)
        self._listen_to_engines()
        self.tasks.start("watch files", watch([*self._files, *self._tls.watched]))
        if self._relays is not None and self._relays.resolver.renames:
            self.tasks.start("resolve relays", self._relays.resolver.run())
        if self._cluster is not None:
            self.tasks.start("follow the cluster", self._cluster.run())
        self.tasks.start("housekeeping", self._housekeeping())
        self.tasks.start("estimated leases", self.director.leases.run())
        self.tasks.start("ask for models", self.director.model_lists.run())
        if self._peers is not None:
            self._keep("share with peers", self._peers.run)
        if self._regions is not None:
            self._keep("share with peer regions", self._regions.link.run)
        if self._lead is not None:
            self._keep("follow the leader", self._lead.run)
            if self._cluster is not None and self._peers is not None:
                lease = self._cluster.lease(self._peers.group.pool, self._peers.leading, self._clock)
                self._keep("hold the lease", lease.run)
        if self._learning is not None:
            self._learning.start(self.tasks)
        if self._restore is not None:
            self.tasks.start("restore the index", self._restored(self._restore))
        self._beat()
        self.tasks.start("heartbeats", self._health.heartbeats(self._beat))
        self.addresses = {"grpc": grpc, "http": http, "first_token": first_token, "health": health}
        log.info("ext_proc on %s, metrics on %s", grpc, http)

    def _listen_to_engines(self) -> None:
        if self._kv_events is not None:
            with located(self._source, "kv_events.listen", self._config.kv_events.listen):
                self._kv_events.start(asyncio.get_running_loop())

    def _live(self) -> Live:
        """Begin to keep what the live page shows."""
        from epp.console.history import History  # noqa: PLC0415  # only where the page is served

        history = self.metrics.requests.history = History(self.scheduler.datastore, self._clock)
        self._keep("keep the last hour", history.run)
        links, recent, peers = self._config.listen.links, self.director.recent, self._peers
        live = Live(self.scheduler, recent, self._clock, peers, self._learning, history, links)
        if self._queueing is not None:
            live.waiting, live.programs = self._queueing.binding.waiting, self._queueing.binding.programs
        return live

    def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that a fault, such as one that another picker's messages bring about, does not end."""
        self.tasks.start(name, kept(name, work, self.metrics.value("epp_faults_total", "task").inc))

    async def _restored(self, restore: IndexRestore) -> None:
        await restore.run()
        self._beat()
        await restore.forget_later()

    async def _housekeeping(self) -> None:
        while True:
            self._sampler.tick()
            self.director.outcomes.expire()
            await asyncio.sleep(HOUSEKEEPING_S)

    def _show_readiness(self, reason: str) -> None:
        self._grpc.set_serving(serving=not reason)
        self._health.publish(reason)

    def _beat(self) -> None:
        self.scheduler.weights.note(self._clock.wall_s())
        reason = self.not_ready()
        others = self._host.beat(ready=not reason)
        self._show_readiness("" if others and not self._draining else reason)

    async def stop(self, drain_s: float | None = None) -> None:
        """Readiness off, let streams finish for at most ``drain_s``, then close everything."""
        self._draining = True
        if self._peers is not None:
            self._peers.leading.resign()
        self._show_readiness(self.not_ready())
        config = self._reload.config
        left_s = config.drain_s if drain_s is None else drain_s
        accept_s = min(config.drain_accept_s, left_s)
        await asyncio.sleep(accept_s)
        if self._queueing is not None:  # what waits is let go, and refused in time for its clients to hear
            asyncio.get_running_loop().call_later(_REFUSE_AT * (left_s - accept_s), self._queueing.shut)
        await self._grpc.stop(left_s - accept_s)
        await self._first_tokens.stop()
        self.director.outcomes.close()
        await self._health.stop()
        if self._recorder is not None:
            self._recorder.close()  # while the leader can still be sent what it writes
        if self._tracing is not None:
            await asyncio.wait(
                [asyncio.ensure_future(in_daemon_thread(self._tracing.close))], timeout=FLUSH_S
            )
        await self.tasks.stop_all()
        if self._kv_events is not None:
            self._kv_events.stop()
        self._host.close()
        self._tokenizers.close()
