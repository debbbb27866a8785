"""The gateway's subset hint: which endpoints it allows a request to go to.

Pure; knows no fleet. Source: endpoint picker protocol (proposal 004), request direction. Rules:

* The key is absent: no hint, every endpoint may serve.
* The key is there: only what it lists, and nothing where it lists nothing or only what cannot be read. It is
  a restriction, so whatever is wrong with it closes rather than opens.
* A list of texts, or one text; each may hold several entries with commas between. An entry is ``ip:port``, or
  an IP alone for all ports of it; IPv6 with a port in brackets. Host names are taken like IPs.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.config.address import split_address
from epp.types import split_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMESPACE = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"


class Entry(Struct, frozen=True):
    """One endpoint, or all of a host when ``port`` is None; hosts in canonical form."""

    host: str
    port: int | None = None

    @classmethod
    def of(cls, address: str) -> Entry:
        """Make the entry that names an endpoint by its address.

        Raises:
            ValueError: it is not an address.
        """
        host, port = split_address(address)
        return cls(_host(host), port)


#: Canonical host -> port -> the endpoints there, of a pool.
Hosts = dict[str, dict[int, list[str]]]


def hosts_of(addresses: Iterable[str]) -> Hosts:
    """Group a pool by host and port."""
    hosts: Hosts = {}
    for address in addresses:
        host, port = split_address(split_rank(address)[0])
        hosts.setdefault(_host(host), {}).setdefault(port, []).append(address)
    return hosts


class Subset(Struct, frozen=True):
    """Entries in the order in which they were listed; without any, no endpoint is allowed."""

    entries: tuple[Entry, ...] = ()

    def addresses(self, hosts: Hosts) -> dict[str, None]:
        """List the pool's endpoints that are allowed, each once, in the order of the entries."""
        allowed: dict[str, None] = {}
        for entry in self.entries:
            ports = hosts.get(entry.host, {})
            for port in ports if entry.port is None else (entry.port,):
                allowed |= dict.fromkeys(ports.get(port, ()))
        return allowed


def subset_hint(metadata: Mapping[str, Mapping[str, object]]) -> Subset | None:
    """Read the hint of a request's metadata, None when there is none."""
    fields = metadata.get(NAMESPACE)
    if fields is None or KEY not in fields:
        return None
    value = fields[KEY]
    texts = value if isinstance(value, list) else [value]
    return parse_entries(tuple(text for text in texts if isinstance(text, str)))


@lru_cache(maxsize=64)  # gateways send the same list with every request
def parse_entries(texts: tuple[str, ...]) -> Subset:
    """Read entries from texts with commas between; what names no endpoint is left out."""
    found: dict[Entry, None] = {}
    for text in texts:
        for piece in text.split(","):
            entry = _entry(piece.strip())
            if entry is not None:
                found[entry] = None
    return Subset(tuple(found))


def _entry(text: str) -> Entry | None:
    if not text:
        return None
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return Entry(_host(str(ipaddress.ip_address(bare))))
    except ValueError:
        pass
    try:
        host, port = split_address(text)
    except ValueError:
        return Entry(text.lower()) if ":" not in text and not text.startswith("[") else None
    return Entry(_host(host), port)


def _host(host: str) -> str:
    """Spell a host in one way: IPv6 compressed, IPv4 that is mapped into it as IPv4, names in lower case."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower()
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
