"""The load ledger: the in-flight load of this picker by endpoint.

Owns the reservations and the counters that are their sums. A reservation is made in the step that selects the
endpoint, so that the next decision of a burst sees it; its uncached tokens are released at the first token
and the rest at the end. Nothing but a reservation changes the counters, so they cannot drift or go negative.

Two counters explain latency (uncached tokens awaiting their first token explain TTFT, unfinished requests
explain E2E); the paper's counter, all prompt tokens until completion, is kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import Floats

ROWS = 5
QUEUED, PENDING, RUNNING, DECODING, CONTEXT = range(ROWS)
"""Rows of `LoadLedger.block`."""
_NOWHERE = -1
#: Reservations kept at once; beyond these the oldest expire.
_MAX_LEASES = 100_000


@dataclass(slots=True)
class _Reservation:
    slot: int
    prompt_tokens: int
    uncached_tokens: int
    answer_tokens: int  # whole, so that sums come back to 0
    sequences: int
    decoding: bool
    expires_at_s: float


class LoadLedger:
    """Reservations by id and their sums by slot.

    Args:
        ttl_s: a reservation that is neither ended nor renewed by its first token for so long expires.
    """

    def __init__(self, ttl_s: float = 1800.0) -> None:
        self._ttl_s = ttl_s
        self._leases: dict[str, _Reservation] = {}  # in order of expiry: renewal moves to the end
        #: Called with a slot whose counters change, and the uncached tokens reserved now.
        self.on_change: dict[str, Callable[[int, int], None]] = {}
        #: By slot, ``[5, capacity]``, not to be written: prompt tokens of unfinished requests, uncached
        #: tokens that await their first token, unfinished requests (one for each of their sequences), those
        #: of them past their first token, prompt tokens and expected answers of these.
        self.block: Floats = np.zeros((ROWS, 0), np.float64)

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self.block = grown(self.block, capacity, 0.0)

    @property
    def pending_uncached_tokens(self) -> Floats:
        """Uncached tokens of requests that await their first token, by slot."""
        tokens: Floats = self.block[PENDING]
        return tokens

    @property
    def running_requests(self) -> Floats:
        """Unfinished requests, by slot."""
        requests: Floats = self.block[RUNNING]
        return requests

    def reserve(
        self,
        lease_id: str,
        slot: int,
        prompt_tokens: int,
        uncached_tokens: int,
        now_s: float,
        *,
        answer_tokens: float = 0.0,
        sequences: int = 1,
    ) -> None:
        """Count a request on a slot.

        Args:
            lease_id: the reservation's, a new one.
            slot: the endpoint's.
            prompt_tokens: of the request.
            uncached_tokens: those that the endpoint has to prefill.
            now_s: the instant.
            answer_tokens: how long the answers are expected to be, together.
            sequences: as how many requests it counts.
        """
        answer, expires_at_s = round(answer_tokens), now_s + self._ttl_s
        lease = _Reservation(slot, prompt_tokens, uncached_tokens, answer, sequences, False, expires_at_s)
        self._leases[lease_id] = lease
        self._count(lease, 1.0)

    def first_token(self, lease_id: str, now_s: float) -> bool:
        """Release the uncached tokens, count the request as decoding, renew the reservation.

        Returns:
            False when there is no such reservation, its slot was forgotten, or it had its first token before.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.decoding or lease.slot == _NOWHERE:
            return False
        block, slot = self.block, lease.slot
        block[PENDING, slot] -= lease.uncached_tokens
        block[DECODING, slot] += lease.sequences
        block[CONTEXT, slot] += lease.prompt_tokens + lease.answer_tokens
        self._changed(slot)
        lease.decoding = True
        lease.expires_at_s = now_s + self._ttl_s
        del self._leases[lease_id]
        self._leases[lease_id] = lease
        return True

    def move(self, lease_id: str, slot: int, uncached_tokens: int) -> None:
        """Count the request on another slot, with what it has to prefill there; its time goes on."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.slot != slot:
            self._count(lease, -1.0)
            lease.slot, lease.uncached_tokens = slot, uncached_tokens
            self._count(lease, 1.0)

    def end(self, lease_id: str) -> bool:
        """Release all that the reservation still holds.

        Returns:
            False when there is no such reservation (it ended or expired before) or its slot was forgotten.
        """
        lease = self._leases.pop(lease_id, None)
        if lease is None or lease.slot == _NOWHERE:
            return False
        self._count(lease, -1.0)
        return True

    def live(self, lease_id: str) -> bool:
        """Tell whether the reservation still counts: its endpoint has not left or restarted since."""
        lease = self._leases.get(lease_id)
        return lease is not None and lease.slot != _NOWHERE

    def expire(self, now_s: float) -> list[str]:
        """End the reservations whose time is over, and the oldest beyond `_MAX_LEASES`; return their ids.

        Reservations of forgotten slots are returned too when their time comes, so that whoever remembers a
        request by its reservation can forget it.
        """
        ids: list[str] = []
        for lease_id, lease in self._leases.items():
            if lease.expires_at_s > now_s and len(self._leases) - len(ids) <= _MAX_LEASES:
                break
            ids.append(lease_id)
        for lease_id in ids:
            self.end(lease_id)
        return ids

    def forget(self, slot: int) -> None:
        """Void the slot's reservations: nothing is counted for them any more."""
        for lease in self._leases.values():
            if lease.slot == slot:
                lease.slot = _NOWHERE
        self.block[:, slot] = 0.0
        self._changed(slot)

    def _changed(self, slot: int, promised_tokens: int = 0) -> None:
        for listener in self.on_change.values():
            listener(slot, promised_tokens)

    def _count(self, lease: _Reservation, sign: float) -> None:
        """Add a reservation to its slot's sums, or take it off."""
        slot, block = lease.slot, self.block
        if slot == _NOWHERE:
            return
        block[QUEUED, slot] += sign * lease.prompt_tokens
        block[RUNNING, slot] += sign * lease.sequences
        if lease.decoding:
            block[DECODING, slot] += sign * lease.sequences
            block[CONTEXT, slot] += sign * (lease.prompt_tokens + lease.answer_tokens)
        else:
            block[PENDING, slot] += sign * lease.uncached_tokens
        self._changed(slot, lease.uncached_tokens if sign > 0.0 else 0)
