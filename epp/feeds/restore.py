"""A restart without a storm: the prefix index is seeded from the last minutes of records.

Owns when that happens and how long others wait for it. Reading is a thread's work; the index changes on the
event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from epp.records.restore import read_seeds
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from pathlib import Path

    from epp.clock import Clock
    from epp.prefix_cache.warm_index import WarmIndex
    from epp.records.restore import Restored
    from epp.signals.datastore import Datastore

log = logging.getLogger(__name__)

#: How much of the newest records is read.
WINDOW_S = 900.0
#: How long readiness waits, and after which a picker does without.
LIMIT_S = 5.0
#: How long seeds are kept: what nobody asked for by then is not worth its memory.
KEEP_S = 3600.0
_POLL_S = 0.02


class IndexRestore:
    """One restoration.

    Args:
        folder: the records.
        index: gets the seeds.
        datastore: says who is in the pool.
        key_id: the deployment's key, as records name it.
        clock: the time.
    """

    def __init__(
        self, folder: Path, *, index: WarmIndex, datastore: Datastore, key_id: str, clock: Clock
    ) -> None:
        self._folder, self._index, self._datastore = folder, index, datastore
        self._key_id, self._clock = key_id, clock
        self._deadline_s = clock.mono_s() + LIMIT_S
        self._done = False

    @property
    def pending(self) -> bool:
        """Whether it is worth waiting for."""
        return not self._done and not self._late()

    async def run(self) -> None:
        """Restore once there is a pool; then keep the seeds for as long as they are of use."""
        try:
            while not len(self._datastore) and not self._late():  # noqa: ASYNC110  # nobody signals a pool
                await asyncio.sleep(_POLL_S)
            await self._restore()
        finally:
            self._done = True

    async def forget_later(self) -> None:
        """Drop what is left of the seeds when nobody is likely to ask for it any more."""
        await asyncio.sleep(KEEP_S)
        self._index.drop_seeds()

    async def _restore(self) -> None:
        slots = {endpoint.address: slot for slot, endpoint in self._datastore.members}
        if not slots:
            return
        self._index.expect_seeds()  # an endpoint may leave, or its engine restart, while we read
        try:
            restored = await in_daemon_thread(self._read, slots)
        except Exception:
            log.exception("the prefix index starts empty: the records cannot be read")
            return
        self._index.seed(restored.seeds)
        log.info(
            "prefix index: %d prefixes from %d recorded requests%s%s",
            len(restored.seeds),
            restored.requests,
            "" if restored.complete else ", not all of them: time was up",
            f"; {restored.foreign_files} files under another key" if restored.foreign_files else "",
        )

    def _read(self, slots: dict[str, int]) -> Restored:
        return read_seeds(
            self._folder,
            key_id=self._key_id,
            since_wall_s=self._clock.wall_s() - WINDOW_S,
            slots=slots,
            capacities={slot: self._index.capacity(slot) for slot in slots.values()},
            hurry=self._late,
        )

    def _late(self) -> bool:
        return self._done or self._clock.mono_s() >= self._deadline_s
