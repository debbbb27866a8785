"""The hop header: how a picker proves to a peer region that it forwards a request.

Owns what a region believes of a forwarded request. One token belongs to one decision. It names the region
that forwarded first and its decision, the regions passed, those that it is valid for, and an expiry. A region
believes a token signed under the key that all share, from the region passed last by its certificate, once,
and only while the request has hops left. Its pickers tell each other which ones are used.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b, sha256
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from epp.config.federation import DOMAIN
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

#: How long a decision can be used: a few round trips and retries, and the difference of two regions' clocks.
LIFETIME_MS = 10_000
#: Tokens of a region that are remembered until they expire, at most: 10,000 a second.
REMEMBERED = 100_000
_VERSION = 1
_MAC_BYTES = sha256().digest_size
#: Of a client's request id; what is longer is compared as far as this.
_ID_CHARS = 128

#: Why a forwarded request is refused, as metrics name it, and in words.
REASONS = {
    "missing": "it carries no hop header",
    "forged": "its hop header is not signed by a region of this federation",
    "peer": "its hop header belongs to another region than the certificate",
    "request": "its hop header belongs to another request",
    "target": "its hop header is for other regions",
    "expired": "its hop header has expired",
    "hops": "it was forwarded too often",
    "replayed": "its hop header was used before",
}


class HopRefusedError(EppError):
    """A forwarded request is not believed.

    Args:
        reason: a key of `REASONS`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"forwarded request refused: {REASONS[reason]}")


_ENCODE = msgspec.msgpack.Encoder().encode


class Hop(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token says.

    Attributes:
        decision_id: of the decision in the first of the regions passed.
        request_id: of the client's request.
        expires_ms: Unix time.
        passed: regions that have forwarded it, the origin first.
        targets: regions that may take it, also from each other.
        bound: no engine of the region passed last may, so one without room takes it, too.
    """

    decision_id: str
    request_id: str
    expires_ms: int
    passed: tuple[str, ...]
    targets: tuple[str, ...]
    bound: bool = False

    @property
    def origin(self) -> str:
        """Region that forwarded first."""
        return self.passed[0]

    @property
    def use_id(self) -> bytes:
        """Name its one use, in 16 bytes."""
        return blake2b(_ENCODE((self.decision_id, self.passed)), digest_size=16).digest()


_TOKENS = msgspec.msgpack.Decoder(tuple[int, Hop])


def sign(hop: Hop, key: bytes) -> str:
    """Make the token of a hop; text that any header carries."""
    data = msgspec.msgpack.encode((_VERSION, hop))
    return urlsafe_b64encode(hmac.digest(key, data, sha256) + data).decode().rstrip("=")


def _read(token: str, key: bytes) -> Hop | None:
    """Read a token; None where it is none, or of another key or version."""
    try:
        raw = urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
    except (binascii.Error, UnicodeEncodeError):
        return None
    mac, data = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(key, data, sha256)):
        return None
    try:
        version, hop = _TOKENS.decode(data)
    except msgspec.MsgspecError:  # of another version, while regions are updated
        return None
    return hop if version == _VERSION else None


class Hops:
    """Signs hops of one region, and checks those that come to it.

    Args:
        region: the own one.
        key: shared by all regions.
        max_hops: how often a request may be forwarded.

    Attributes:
        max_hops: as given.
        on_use: tells the region's other pickers of a token used, by its use and expiry in Unix ms.
    """

    def __init__(self, region: str, key: bytes, max_hops: int) -> None:
        self._region, self._key, self.max_hops = region, key, max_hops
        #: Uses of tokens in this region, and when they expire; the oldest first.
        self._seen: dict[bytes, int] = {}
        self.on_use: Callable[[bytes, int], None] = lambda *_: None

    def check(self, token: str, peer: str, request_id: str, now_ms: int) -> Hop:
        """Believe a token that was not used before.

        Args:
            token: of the request, ``""`` without one.
            peer: DNS names of the certificate that it came under, by commas.
            request_id: of the request.
            now_ms: Unix time.

        Raises:
            HopRefusedError: it is not to be believed.
        """
        hop = _read(token, self._key)
        if hop is None or not hop.passed:
            raise HopRefusedError("forged" if token else "missing")
        if f"{hop.passed[-1]}.{DOMAIN}" not in peer.split(","):
            raise HopRefusedError("peer")
        if hop.request_id != request_id[:_ID_CHARS]:
            raise HopRefusedError("request")
        if self._region not in hop.targets or self._region in hop.passed:
            raise HopRefusedError("target")
        # A lifetime of years would outlive what is remembered.
        if not now_ms < hop.expires_ms <= now_ms + 2 * LIFETIME_MS:
            raise HopRefusedError("expired")
        if len(hop.passed) > self.max_hops:
            raise HopRefusedError("hops")
        self._forget(now_ms)
        if self._seen.get(hop.use_id, 0) > now_ms or len(self._seen) >= REMEMBERED:
            raise HopRefusedError("replayed")
        return hop

    def use(self, hop: Hop) -> None:
        """Note a token as used: its request is taken, and no other under it."""
        self._seen[hop.use_id] = hop.expires_ms
        self.on_use(hop.use_id, hop.expires_ms)

    def used(self, most: int) -> list[tuple[bytes, int]]:
        """List the newest uses in this region, for a picker that joins."""
        return list(islice(reversed(self._seen.items()), most))

    def hold(self, used: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Note tokens that another picker of the region has used."""
        self._forget(now_ms)
        for use, expires_ms in used:
            if now_ms < expires_ms <= now_ms + 2 * LIFETIME_MS and len(self._seen) < REMEMBERED:
                self._seen[use] = expires_ms

    def _forget(self, now_ms: int) -> None:
        seen = self._seen
        while seen and seen[oldest := next(iter(seen))] <= now_ms:
            del seen[oldest]

    def reachable(self, hop: Hop, regions: Collection[str]) -> frozenset[str]:
        """List the regions of a federation that a request may go to after a hop: that all before allow."""
        if len(hop.passed) >= self.max_hops:
            return frozenset({self._region})
        return frozenset(regions) & {*hop.targets, self._region} - {*hop.passed}

    def forward(
        self,
        before: Hop | None,
        decision_id: str,
        request_id: str,
        targets: tuple[str, ...],
        now_ms: int,
        *,
        bound: bool = False,
    ) -> str:
        """Sign a decision that may go to other regions.

        Args:
            before: the hop by which the request came here, None from a client.
            decision_id: the own decision's.
            request_id: of the request.
            targets: the regions that it names, and those that it allows them to forward to.
            now_ms: Unix time.
            bound: no engine here may take it.
        """
        passed = (self._region,) if before is None else (*before.passed, self._region)
        origin_id = decision_id if before is None else before.decision_id
        hop = Hop(origin_id, request_id[:_ID_CHARS], now_ms + LIFETIME_MS, passed, targets, bound)
        return sign(hop, self._key)
