"""The server as a whole: builds every part from the configuration, starts and stops them in order.

Owns the wiring and the life cycle, no logic. Start-up errors are `ConfigError`; after that nothing an
operator writes into a watched file can stop the server.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.prefix_cache.state_slots import StateSlots
from epp.prefix_cache.warm_index import WarmIndex
from epp.records.recorder import FileRecorder, NoRecorder
from epp.schedule.picker import Picker, PickerSettings
from epp.schedule.saturation import Shedding
from epp.schedule.weights import WeightBook
from epp.server.accepting import allowed_connections
from epp.server.capability import CapabilityFeed
from epp.server.cluster import ClusterFeed
from epp.server.core import Core
from epp.server.decision_ids import DecisionIds
from epp.server.feed import SignalFeed
from epp.server.files import WatchedFile, WatchedFiles, watch
from epp.server.first_token import FirstTokenReceiver
from epp.server.grpc import GrpcServer
from epp.server.health_thread import HealthThread
from epp.server.http import build_app
from epp.server.learning import Learning
from epp.server.metrics import Metrics
from epp.server.metrics_read import PickerState
from epp.server.observation import Observation
from epp.server.poll import with_credentials_of
from epp.server.pool import PoolFeed
from epp.server.relays import RelayPaths
from epp.server.resolve import Resolver
from epp.server.restore import IndexRestore
from epp.server.secret import hash_secret
from epp.server.served_tokenizers import ServedTokenizers
from epp.server.sockets import located
from epp.server.tasks import Tasks
from epp.server.tls import server_context
from epp.server.tokenizers import Tokenizers, load_models
from epp.signals.fleet import Fleet
from epp.tokens.estimate import EstimateCounter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 1.0


class App:
    """One picker process.

    Args:
        config: checked configuration.
        base: folder that relative paths of the configuration are relative to.
        source: name of the configuration file, for errors.
        clock: the time.

    Raises:
        ConfigError: a value does not fit the policy or a file that it names is missing.
    """

    def __init__(self, config: Config, base: Path, source: str, clock: Clock) -> None:
        self._config, self._base, self._source, self._clock = config, base, source, clock
        self._draining = False
        self._decision_ids = DecisionIds()
        self.metrics = Metrics()
        self.tasks = Tasks()
        hasher = BlockHasher(hash_secret(config, base, source), config.prefix.block_bytes)
        self._recorder = self._build_recorder(hasher)
        self._index = WarmIndex(
            capacity_tokens=config.prefix.capacity_tokens,
            name_block=hasher.export_id,
            coarse_blocks=hasher.coarse_blocks,
            states=StateSlots.of(config.prefix),
        )
        counter = EstimateCounter()
        self.picker = self._build_picker(source, hasher, counter)
        models = load_models(config.tokens, base, source)
        self._served_tokenizers = ServedTokenizers(models, config.tokens, clock.mono_s)
        self._tokenizers = Tokenizers(
            models,
            config.tokens.budget_ms,
            block_bytes=config.prefix.block_bytes,
            on_estimate=lambda reason: self.metrics.value("epp_token_estimates_total", reason).inc(),
        )
        self._shedding = Shedding(self.picker.fleet, config.saturation, self._priority)
        self._relays = RelayPaths(config.relays)
        self._learning = Learning(config, self.picker, self.metrics, clock, source, base=base)
        self.core = self._build_core(hasher, counter)
        self._pool = self._build_pool(counter)
        self._cluster = self._build_cluster(source)
        self._restore = self._build_restore(hasher)
        self._files = self._watched_files()
        self._certificates: list[WatchedFiles] = []
        self._observation = Observation(config, self.core, self.metrics, clock)
        self._max_connections = allowed_connections(config.listen.max_connections)
        self._grpc = self._build_grpc()
        self._health = HealthThread(
            config.listen,
            base,
            source,
            metrics=self.metrics,
            max_connections=self._max_connections,
            follow=self._certificates.append,
        )
        kubernetes = config.pool.kubernetes
        pool = kubernetes.pool_name if kubernetes and kubernetes.pool_name else "default"
        state = PickerState(self.picker, clock.mono_s, pool, self._shedding.saturation)
        self.metrics.show("picker", state)
        self.metrics.show("tokenizers", self._served_tokenizers)
        self._first_tokens = self._build_first_tokens()
        self.grpc_address = self.http_address = self.first_token_address = self.health_address = ""

    def _build_core(self, hasher: BlockHasher, counter: EstimateCounter) -> Core:
        config = self._config
        return Core(
            picker=self.picker,
            counter=counter,
            hasher=hasher,
            regions=config.regions,
            tenant_header=config.request.tenant_header,
            inject_usage=config.request.inject_usage == "always",
            tell_model=config.capability.tell_model,
            metrics=self.metrics,
            recorder=self._recorder,
            clock=self._clock,
            resolver=Resolver(),
            protocol=config.protocol,
            admission=self._shedding,
            tokenizers=self._tokenizers,
            relays=self._relays,
            observers=self._learning.observers,
            read_bodies=config.request.read_bodies == "always" or bool(config.records.folder),
        )

    def _build_pool(self, counter: EstimateCounter) -> PoolFeed:
        config = self._config
        return PoolFeed(
            picker=self.picker,
            sink=SignalFeed(
                self.picker.fleet,
                self.metrics,
                self._index.process_started,
                counter.observe,
                self._served_tokenizers.look_for,
            ),
            tasks=self.tasks,
            probe=config.probe,
            scrape=with_credentials_of(config.scrape, self._base),
            metrics=self.metrics,
            clock=self._clock,
            settings=config.pool,
            base=self._base,
            resolver=self.core.resolver,
            relays=config.relays,
        )

    def _build_grpc(self) -> GrpcServer:
        return GrpcServer(
            self._config,
            self._base,
            self.core,
            self.metrics,
            self._source,
            observation=self._observation,
            max_connections=self._max_connections,
            follow=self._certificates.append,
        )

    def _build_first_tokens(self) -> FirstTokenReceiver:
        receiver = FirstTokenReceiver(
            self.core.outcomes,
            max_connections=self._max_connections,
            on_refused=self.metrics.value("epp_connections_closed_total", "first_token", "limit").inc,
        )
        self.metrics.receivers["first-token"] = receiver
        return receiver

    def _build_cluster(self, source: str) -> ClusterFeed | None:
        settings = self._config.pool.kubernetes
        if settings is None:
            return None
        return ClusterFeed(
            settings,
            base=self._base,
            source=source,
            pool=self._pool,
            metrics=self.metrics,
            clock=self._clock,
        )

    def _priority(self, objective: str) -> int:
        return self._cluster.priority(objective) if self._cluster is not None else 0

    def _build_picker(self, source: str, hasher: BlockHasher, counter: EstimateCounter) -> Picker:
        config = self._config
        policy = create(config.policy.name, config.policy.params, source=source)
        weights = WeightBook(
            policy=policy.name,
            specs=policy.weight_specs,
            configured=config.policy.weights,
            bounds=config.policy.bounds,
            source=source,
        )
        return Picker(
            fleet=Fleet.build(config, self._index),
            policy=policy,
            balance=create("least-request"),
            weights=weights,
            settings=PickerSettings(
                tie_band=config.policy.tie_band,
                seed=config.policy.seed,
                fallbacks=config.policy.fallbacks,
                warmup_s=config.pool.warmup_s,
            ),
            new_id=self._decision_ids,
            name_block=hasher.export_id,
            learn=counter.observe,
        )

    def _build_recorder(self, hasher: BlockHasher) -> FileRecorder | NoRecorder:
        records = self._config.records
        if not records.folder:
            return NoRecorder()
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
        if not (records.folder and records.restore_s and self._config.prefix.secret_file):
            return None
        return IndexRestore(
            self._base / records.folder,
            index=self._index,
            fleet=self.picker.fleet,
            key_id=hasher.key_id,
            window_s=records.restore_s,
            clock=self._clock,
        )

    def _watched_files(self) -> list[WatchedFile]:
        files: list[WatchedFile] = []
        if self._cluster is None:
            files.append(self._watched(self._config.pool.file, self._pool.content, "endpoints"))
        for layer, name in (("tuner", self._config.weights_file), ("override", self._config.overrides_file)):
            if name:
                label = "weights" if layer == "tuner" else "overrides"
                files.append(
                    self._watched(name, self._weights_setter(layer, str(self._base / name), label), label)
                )
        if name := self._config.capability.file:
            feed = CapabilityFeed(self.picker.fleet.capability, self.metrics, str(self._base / name))
            files.append(self._watched(name, feed.content, "capability"))
        return files + self._learning.files()

    def _watched(self, name: str, take: Callable[[bytes | None], None], label: str) -> WatchedFile:
        return WatchedFile(self._base / name, take, partial(self.metrics.file_failed, label))

    def _weights_setter(self, layer: str, name: str, label: str) -> Callable[[bytes | None], None]:
        def take(text: bytes | None) -> None:
            try:
                changed = self.picker.weights.update(layer, text, name)
            except ConfigError as error:
                self.metrics.file_failed(label)
                log.error("%s; the last good values stay in force", error)  # noqa: TRY400
                return
            self.metrics.file_good(label, there=text is not None)
            if changed:
                log.info("weights in force: %s", self.picker.weights.current.values)

        return take

    def not_ready(self) -> str:
        """Why requests should not come here, ``""`` when they should."""
        if self._draining:
            return "draining"
        if self.tasks.failed:
            return "dead tasks: " + ", ".join(sorted(self.tasks.failed))
        if self._cluster is not None:
            reason = self._cluster.not_ready()
            if reason:
                return reason
        elif not self._pool.size:
            return "no endpoints known"
        if self._restore is not None and self._restore.pending:
            return "rebuilding the prefix index"
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
        self.tasks.start("resolve names", self.core.resolver.run())
        await self._pool.start()
        routes = build_app(
            health=self._health,
            metrics=self.metrics,
            decision=self.core.recent.get,
            decided=self._decision_ids.__contains__,
            verdict=self._recorder.verdict if self._config.records.folder else None,
        )
        self.http_address, self.health_address = await self._health.start(routes, on_stall)
        self.grpc_address = await self._grpc.start()
        if listen.first_token:
            section, follow = "listen.first_token_tls", self._certificates.append
            tls = server_context(listen.first_token_tls, self._base, source, section, follow)
            with located(source, "listen.first_token", listen.first_token):
                self.first_token_address = self._first_tokens.listen(listen.first_token, tls)
        self.tasks.start("watch files", watch([*self._files, *self._certificates]))
        if self._relays.resolver.any_names:
            self.tasks.start("resolve relays", self._relays.resolver.run())
        if self._cluster is not None:
            self.tasks.start("follow the cluster", self._cluster.run())
        self.tasks.start("housekeeping", self._housekeeping())
        self.tasks.start("observation", self._observation.run())
        self._learning.start(self.tasks)
        if self._restore is not None:
            self.tasks.start("restore the index", self._restored(self._restore))
        self._publish_readiness()
        self.tasks.start("heartbeats", self._health.heartbeats(self._publish_readiness))
        log.info("ext_proc on %s, metrics on %s", self.grpc_address, self.http_address)

    async def _restored(self, restore: IndexRestore) -> None:
        await restore.run()
        self._publish_readiness()
        await restore.forget_later()

    async def _housekeeping(self) -> None:
        while True:
            self.core.outcomes.expire()
            await asyncio.sleep(HOUSEKEEPING_S)

    def _publish_readiness(self) -> None:
        reason = self.not_ready()
        self._grpc.set_serving(serving=not reason)
        self._health.publish(reason)

    async def stop(self, drain_s: float | None = None) -> None:
        """Readiness off, let streams finish for at most ``drain_s``, then close everything."""
        self._draining = True
        self._publish_readiness()
        left_s = self._config.drain_s if drain_s is None else drain_s
        accept_s = min(self._config.drain_accept_s, left_s)
        await asyncio.sleep(accept_s)
        await self._grpc.stop(left_s - accept_s)
        await self._first_tokens.stop()
        self.core.outcomes.close()
        await self._health.stop()
        await self.tasks.stop_all()
        self._tokenizers.close()
        self._recorder.close()
