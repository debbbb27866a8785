"""Probes and scrapes of a simulated fleet: what the picker learns, as late as it would live.

Owns the rhythm. The stores are the picker's own; they are fed as the server feeds them. A probe tells after a
round trip how long that was; a scrape tells after a round trip what the engine was half a round trip ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from epp.keyed_uniform import keyed_uniform
from epp.signals.retry_after import PEER_PAUSE_S
from epp_lab.sim.loop import Rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.config.schema import Config
    from epp.signals.datastore import Datastore
    from epp.signals.metrics_text import EngineSample
    from epp_lab.sim.loop import Loop
    from epp_lab.sim.network import NetworkPath
    from epp_lab.sim.scenario import ReplicaSpec


class Watched(Protocol):
    """What is probed and scraped: a replica, or a peer region, which has no metrics of its own.

    Attributes:
        spec: its address, and what probes measure.
        network: the way there.
    """

    spec: ReplicaSpec
    network: NetworkPath

    @property
    def up(self) -> bool:
        """Whether it answers."""
        ...

    def sample(self) -> EngineSample | None:
        """Return what a scrape would find."""
        ...


class SignalFeed:
    """Watches replicas for a picker.

    Args:
        datastore: the picker's stores.
        config: intervals and timeouts.
        loop: virtual time.
        seed: of the network's draws.
    """

    def __init__(self, datastore: Datastore, config: Config, loop: Loop, seed: int) -> None:
        self._datastore, self._loop, self._seed = datastore, loop, seed
        self._probe_s, self._scrape_s = config.probe.interval_s, config.scrape.interval_s
        self._watched: dict[str, int] = {}  # address -> generation: a watch that was stopped stays stopped
        self._generation = 0

    def watch(self, replica: Watched) -> None:
        """Probe and scrape at once, then at intervals, spread over the replicas."""
        address, loop = replica.spec.address, self._loop
        self._generation += 1
        self._watched[address] = generation = self._generation
        for interval_s, salt, work in (
            (self._probe_s, "probe", self._send_probe),
            (self._scrape_s, "scrape", self._send_scrape),
        ):
            if interval_s:
                first_ms = loop.now_ms + interval_s * 1e3 * keyed_uniform(0, address, salt)
                loop.at(loop.now_ms, Rank.SIGNAL, work, replica)
                loop.at(first_ms, Rank.SIGNAL, self._repeat, replica, generation, work, interval_s * 1e3)

    def stop(self, replica: Watched) -> None:
        """Stop watching a replica that left the pool."""
        self._watched.pop(replica.spec.address, None)

    def _repeat(
        self, replica: Watched, generation: int, work: Callable[[Watched], None], interval_ms: float
    ) -> None:
        if self._watched.get(replica.spec.address) == generation:
            work(replica)
            due_ms = self._loop.now_ms + interval_ms
            self._loop.at(due_ms, Rank.SIGNAL, self._repeat, replica, generation, work, interval_ms)

    def _ways(self, replica: Watched, what: str) -> tuple[float, float]:
        network = replica.network
        if not network.rtt_ms:
            return 0.0, 0.0
        key = f"{what} {self._loop.now_ms} {replica.spec.address}"
        return network.one_way_ms(self._seed, key, "up"), network.one_way_ms(self._seed, key, "down")

    def _send_probe(self, replica: Watched) -> None:
        up_ms, down_ms = self._ways(replica, "probe")
        loop = self._loop
        loop.at(loop.now_ms + up_ms + down_ms, Rank.SIGNAL, self._probed, replica, up_ms + down_ms)

    def _probed(self, replica: Watched, rtt_ms: float) -> None:
        slot = self._datastore.slot_of(replica.spec.address)
        if slot is None:
            return
        now_s = self._loop.now_ms / 1e3
        if replica.up:
            self._datastore.rtt.observe(slot, rtt_ms * replica.spec.probe_factor, now_s)
            self._datastore.health.success(slot, now_s)
        elif self._datastore.is_peer(slot):
            self._datastore.retry_after.pause_for(slot, PEER_PAUSE_S, now_s)
        else:
            self._datastore.health.failure(slot, "probe", now_s)

    def _send_scrape(self, replica: Watched) -> None:
        up_ms, down_ms = self._ways(replica, "scrape")
        if not up_ms:  # side by side, ten times a second each: two events less for each scrape
            self._scraped(replica, replica.sample() if replica.up else None)
            return
        self._loop.at(self._loop.now_ms + up_ms, Rank.SIGNAL, self._read, replica, down_ms)

    def _read(self, replica: Watched, down_ms: float) -> None:
        sample = replica.sample() if replica.up else None
        self._loop.at(self._loop.now_ms + down_ms, Rank.SIGNAL, self._scraped, replica, sample)

    def _scraped(self, replica: Watched, sample: EngineSample | None) -> None:
        datastore, now_s = self._datastore, self._loop.now_ms / 1e3
        slot = datastore.slot_of(replica.spec.address)
        if slot is None or sample is None:
            return
        if datastore.engine.update(slot, sample, now_s):
            datastore.restart(replica.spec.address, now_s)
        if sample.kv_capacity_tokens:
            datastore.learn_capacity(slot, sample.kv_capacity_tokens)
