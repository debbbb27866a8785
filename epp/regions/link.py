"""One picker's link to peer regions over a bus: when a summary goes out, and who makes it.

Owns the subjects and the timer. Every picker hears the peers; one of a region tells. Nothing waits for
anything here: what is lost is made good by the next summary, or by the whole sketch, which whoever missed
changes asks for.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from epp.regions.summary import LEAST_S, Summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from epp.clock import Clock
    from epp.regions.remote import RemoteRegions
    from epp.signals.datastore import Datastore

#: Longest wait for a whole sketch.
_ANSWER_S = 2.0


class Bus(Protocol):
    """Carries messages between regions."""

    def publish(self, subject: str, data: bytes) -> None:
        """Send to all who listen, or drop it."""

    def listen(self, subject: str, take: Callable[[bytes], bytes | None]) -> None:
        """Hear a subject from now on; what ``take`` returns is the answer, None for none."""

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Ask whoever listens; empty where nobody answers."""
        ...


class RegionLink:
    """Tells peer regions of the own one, and hears them.

    Args:
        datastore: the signals.
        remote: what is known of the peers.
        bus: carries messages.
        clock: the time.
        subject: begins those of the pool.
        peers: the other regions.
        region: the own one.
        origin: name of this process, another one at each start.
        key_id: of block size and hashing key (`BlockHasher.key_id`).
        tells: whether this picker is the one of its region that tells, now.

    Attributes:
        peers: as given.
        bytes: sent and received, by direction.
    """

    def __init__(
        self,
        datastore: Datastore,
        remote: RemoteRegions,
        bus: Bus,
        clock: Clock,
        *,
        subject: str,
        peers: Collection[str],
        region: str,
        origin: str,
        key_id: str,
        tells: Callable[[], bool],
    ) -> None:
        self._remote, self._bus, self._clock, self._tells = remote, bus, clock, tells
        self.peers = peers
        self._make = partial(Summaries, datastore, region=region, origin=origin, key_id=key_id)
        self._summaries: Summaries | None = None
        self._all, self._sketch = f"{subject}.summary", f"{subject}.sketch"
        self._asking: set[asyncio.Task[None]] = set()
        self.bytes = {("sent",): 0.0, ("received",): 0.0}
        bus.listen(self._all, self._hear)
        bus.listen(f"{self._sketch}.{region}", self._whole)

    def age_s(self, region: str) -> float:
        """Return the age of what is known of a peer, infinite before its first summary."""
        return self._remote.age_s(region, self._clock.mono_s())

    async def run(self) -> None:
        """Tell and ask until cancelled."""
        try:
            while True:
                for region in self.tick():
                    task = asyncio.ensure_future(self.ask(region))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
                await asyncio.sleep(LEAST_S)
        finally:
            for task in self._asking:
                task.cancel()

    def tick(self) -> list[str]:
        """Send the summary that is due; the regions whose whole sketch is to be asked for."""
        if self._tells() != (self._summaries is not None):
            if self._summaries is None:
                self._summaries = self._make()
            else:
                self._summaries.stop()
                self._summaries = None
        now_s = self._clock.mono_s()
        if self._summaries is not None:
            data = self._summaries.make(now_s, self._clock.wall_s())
            if data is not None:
                self._bus.publish(self._all, self._counted("sent", data))
        return self._remote.missing(now_s)

    async def ask(self, region: str) -> None:
        """Ask a region for its whole sketch."""
        if answer := await self._bus.request(f"{self._sketch}.{region}", b"", _ANSWER_S):
            self._hear(answer)

    def _hear(self, data: bytes) -> None:
        self._remote.hear(self._counted("received", data), self._clock.mono_s())

    def _whole(self, _: bytes) -> bytes | None:
        return None if self._summaries is None else self._counted("sent", self._summaries.whole())

    def _counted(self, direction: str, data: bytes) -> bytes:
        self.bytes[direction,] += len(data)
        return data
