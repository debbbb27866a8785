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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import join_address, split_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMESPACE = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"


@dataclass(frozen=True, slots=True)
class Entry:
    """One endpoint, or all of a host when ``port`` is None; hosts in canonical form."""

    host: str
    port: int | None = None

    @property
    def address(self) -> str:
        """The entry as an endpoint's address; a host alone for all its ports."""
        return self.host if self.port is None else join_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Subset:
    """Entries in the order in which they were listed; none at all allows nobody."""

    entries: tuple[Entry, ...] = ()

    def addresses(self, endpoints: Iterable[str]) -> dict[str, None]:
        """Those of the endpoints that are allowed, in the order of the entries."""
        by_host: dict[str, list[str]] = {}
        every = set()
        for address in endpoints:
            host, _ = split_address(address)
            by_host.setdefault(_host(host), []).append(address)
            every.add(address)
        allowed: dict[str, None] = {}
        for entry in self.entries:
            if entry.port is None:
                allowed |= dict.fromkeys(by_host.get(entry.host, ()))
            elif entry.address in every:
                allowed[entry.address] = None
        return allowed


def subset_hint(metadata: Mapping[str, Mapping[str, object]]) -> Subset | None:
    """The hint of a request's metadata, None when there is none."""
    fields = metadata.get(NAMESPACE)
    if fields is None or KEY not in fields:
        return None
    value = fields[KEY]
    texts = value if isinstance(value, list) else [value]
    return parse_entries(text for text in texts if isinstance(text, str))


def parse_entries(texts: Iterable[str]) -> Subset:
    """Entries from texts with commas between; what names no endpoint is left out."""
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
    """One spelling a host: IPv6 compressed, IPv4 that is mapped into it as IPv4, names in lower case."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower()
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
