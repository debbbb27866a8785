"""The EDS file at run time: written whenever the pool, or what its host names resolve to, changes.

Owns what is in the file and which endpoints Envoy has had time to read there. A host name is written as its
address, with its own name for TLS; one that does not resolve is left out. While the file cannot be written
endpoints are picked all the same: Envoy passes over a pick that it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.eds import eds_content, peer_name
from epp.server.files import read_file, replace_file
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from epp.server.metrics import Metrics
    from epp.server.resolve import Resolver
    from epp.types import Endpoint

log = logging.getLogger(__name__)

#: Longest wait for host names at the start; those that resolve later come into the file then.
NAMES_S = 3.0
#: Time from a write that failed to the next try.
RETRY_S = 5.0


class EdsFile:
    """Writes the file, and says which endpoints Envoy knows.

    Args:
        path: the file.
        delay_s: seconds from a write until Envoy has read it.
        resolver: host names to addresses.
        metrics: counted into.
        on_known: called when Envoy knows further endpoints.
    """

    def __init__(
        self,
        path: Path,
        *,
        delay_s: float,
        resolver: Resolver,
        metrics: Metrics,
        on_known: Callable[[], None],
    ) -> None:
        self._path, self._delay_s, self._resolver = path, delay_s, resolver
        self._metrics, self._on_known = metrics, on_known
        self._endpoints: Sequence[Endpoint] | None = None
        self._content: bytes | None = None
        self._written: frozenset[str] = frozenset()
        self._known: frozenset[str] | None = None  # None until the first file is written
        self._failing = False
        self._changed = asyncio.Event()
        resolver.on_change = self._changed.set

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
                async with asyncio.timeout(RETRY_S if self._failing else None):
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
        content = eds_content(hosts.values())
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
