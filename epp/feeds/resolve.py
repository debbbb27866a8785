"""Host names to the addresses that Envoy knows them by.

Envoy resolves the host names of its cluster and from then on knows ``ip:port`` only, so that is what a
decision has to name. Owns the last good answer for each name, and the look-ups under way: each name has one
at a time, and none waits for another's. One host name is one replica here: of several addresses the first in
order is used (IPv4 before IPv6, as Envoy prefers).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

from epp.config.address import is_ip, join_address, split_address
from epp.schedule.subset import hosts_of
from epp.types import split_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.schedule.subset import Hosts, Subset

log = logging.getLogger(__name__)

REFRESH_S = 5.0


class Resolver:
    """Names in the pool and what they resolve to."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, int]] = {}
        self._known: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._alias_hosts: Hosts = {}
        self._ranks: frozenset[str] = frozenset()
        self._failing: set[str] = set()
        self._under_way: set[str] = set()
        self._wake = asyncio.Event()
        #: Whether Envoy calls any endpoint otherwise than we, and whether any has further addresses.
        self.renames = self.any_aliases = False
        #: Called when a name resolves to something else, and when it first does not, by name.
        self.on_change: dict[str, Callable[[], None]] = {}

    def set_pool(self, endpoints: Iterable[str]) -> None:
        """Set the endpoints of the pool; host names among them are resolved soon."""
        parts = {name: split_rank(name) for name in endpoints}
        wanted = {address: split_address(address) for address, _ in parts.values()}
        self._names = {address: pair for address, pair in wanted.items() if not is_ip(pair[0])}
        self._ranks = frozenset(name for name, (_, rank) in parts.items() if rank)
        self.renames = bool(self._names or self._ranks)
        self._known = {address: ip for address, ip in self._known.items() if address in self._names}
        self._failing &= self._names.keys()
        self._wake.set()

    def set_aliases(self, aliases: Mapping[str, str]) -> None:
        """Set further addresses of endpoints, to their own: the other family of a dual-stack pod."""
        self._aliases = dict(aliases)
        self.any_aliases = bool(aliases)
        self._alias_hosts = hosts_of(self._aliases)

    def known_as(self, endpoint: str) -> str:
        """Name an endpoint as Envoy does: by its address, once its name is resolved by that."""
        address, _ = split_rank(endpoint)
        return self._known.get(address, address)

    def resolved(self, endpoint: str) -> str | None:
        """Return the address of an endpoint; None while its name has not been resolved."""
        address, _ = split_rank(endpoint)
        return None if address in self._names and address not in self._known else self.known_as(address)

    @property
    def unanswered(self) -> bool:
        """Whether any name's first look-up is still under way."""
        return not self._names.keys() <= self._known.keys() | self._failing

    def endpoint_of(self, upstream: str, chosen: str = "") -> str:
        """Find the endpoint that Envoy calls ``upstream``; itself when it is neither name nor alias.

        Of several ranks at its address it is the one with the number of the chosen endpoint's rank.
        """
        known = self._aliases.get(upstream, upstream)
        if self._known:
            known = next((address for address, ip in self._known.items() if ip == known), known)
        ranked = f"{known}@{split_rank(chosen)[1]}"
        return ranked if ranked in self._ranks else known

    def names_of(self, host: str, port: int | None) -> list[str]:
        """Find the endpoints whose names resolve to an address; on any port when ``port`` is None."""
        return [
            address
            for address, known in self._known.items()
            if split_address(known)[0] == host and port in (None, split_address(known)[1])
        ]

    def aliases_in(self, hint: Subset) -> dict[str, str]:
        """Endpoints that a hint lists by a further address, each to the first such address."""
        found: dict[str, str] = {}
        for alias in hint.addresses(self._alias_hosts):
            found.setdefault(self._aliases[alias], alias)
        return found

    async def run(self) -> None:
        """Resolve for ever: at once when the pool changes, else every few seconds."""
        async with asyncio.TaskGroup() as look_ups:
            while True:
                self._wake.clear()
                # One that hangs holds a thread: its name gets no second one, and the others do not wait.
                for address in [name for name in self._names if name not in self._under_way]:
                    self._under_way.add(address)
                    look_ups.create_task(self._look_up(address))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S):
                        await self._wake.wait()

    async def _look_up(self, address: str) -> None:
        try:
            await self.resolve(address)
        finally:
            self._under_way.discard(address)

    async def resolve(self, address: str) -> None:
        """Look one name up; a failure keeps the last good answer and is told once."""
        pair = self._names.get(address)
        if pair is None:  # it left the pool before its turn came
            return
        host, port = pair
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if address in self._names and address not in self._failing:
                self._failing.add(address)
                log.warning("cannot resolve %s: %s", host, error)
                self._tell()
            return
        self._failing.discard(address)
        ips = sorted(
            {ipaddress.ip_address(entry[4][0]) for entry in found}, key=lambda ip: (ip.version, int(ip))
        )
        known = join_address(str(ips[0]), port) if ips else ""
        if known and address in self._names and known != self._known.get(address):
            self._known[address] = known
            self._tell()

    def _tell(self) -> None:
        for listener in self.on_change.values():
            listener()
