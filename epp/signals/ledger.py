"""The load ledger: what this picker has promised each endpoint and not yet got back.

Owns the leases and the counters that are their sums. A lease is reserved in the step that selects the
endpoint, so that the next decision of a burst sees it; it gives its uncached tokens back at the first token
and the rest at the end. The counters are exactly what the leases say: they cannot drift or go negative,
because nothing but a lease changes them, and a lease changes them once.

Two counters explain latency (uncached tokens awaiting their first token explain TTFT, unfinished requests
explain E2E); the paper's counter, all prompt tokens until completion, is kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown, row

if TYPE_CHECKING:
    from numpy.typing import NDArray

_QUEUED, _PENDING, _RUNNING, _DECODING, _CONTEXT = range(5)
_NOWHERE = -1


@dataclass(slots=True)
class _Lease:
    slot: int
    prompt_tokens: int
    uncached_tokens: int
    answer_tokens: int  # whole, so that sums come back to 0
    decoding: bool
    expires_at_s: float

    @property
    def context_tokens(self) -> int:
        """What its decode reads of the KV cache when the answer is as long as expected."""
        return self.prompt_tokens + self.answer_tokens


class LoadLedger:
    """Leases by id and their sums by slot.

    Args:
        ttl_s: a lease that is neither ended nor renewed by its first token for so long expires.
        max_leases: leases kept at once; one more pushes the oldest out, as if expired.
    """

    def __init__(self, ttl_s: float = 1800.0, max_leases: int = 100_000) -> None:
        if ttl_s <= 0 or max_leases < 1:
            raise ValueError(f"ttl_s {ttl_s} and max_leases {max_leases} must be positive")
        self._ttl_s, self._max_leases = ttl_s, max_leases
        self._leases: dict[str, _Lease] = {}  # in order of expiry: renewal moves to the end
        self._pushed_out: list[str] = []
        self._block = np.zeros((5, 0), np.float64)
        #: Leases that expired, those pushed out included.
        self.expired = 0
        #: Leases pushed out by newer ones.
        self.pushed_out = 0

    def __len__(self) -> int:
        """Leases held."""
        return len(self._leases)

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._block = grown(self._block, capacity, 0.0)

    @property
    def block(self) -> NDArray[np.float64]:
        """All columns by slot, ``[5, capacity]``, in the order of the properties below; not to be written."""
        return self._block

    @property
    def queued_tokens(self) -> NDArray[np.float64]:
        """Prompt tokens of unfinished requests, by slot."""
        return row(self._block, _QUEUED)

    @property
    def pending_uncached_tokens(self) -> NDArray[np.float64]:
        """Uncached tokens of requests that await their first token, by slot."""
        return row(self._block, _PENDING)

    @property
    def running_requests(self) -> NDArray[np.float64]:
        """Unfinished requests, by slot."""
        return row(self._block, _RUNNING)

    @property
    def decoding_requests(self) -> NDArray[np.float64]:
        """Unfinished requests past their first token, by slot."""
        return row(self._block, _DECODING)

    @property
    def decoding_tokens(self) -> NDArray[np.float64]:
        """Prompt tokens and expected answers of the requests past their first token, by slot."""
        return row(self._block, _CONTEXT)

    def reserve(
        self,
        lease_id: str,
        slot: int,
        prompt_tokens: int,
        uncached_tokens: int,
        now_s: float,
        *,
        answer_tokens: float = 0.0,
    ) -> None:
        """Count a request on a slot. A lease of that id that exists is ended first.

        Args:
            lease_id: the lease.
            slot: the endpoint's.
            prompt_tokens: of the request.
            uncached_tokens: those that the endpoint has to prefill.
            now_s: the instant.
            answer_tokens: how long the answer is expected to be.

        Raises:
            ValueError: negative tokens.
        """
        if prompt_tokens < 0 or uncached_tokens < 0:
            raise ValueError(f"negative tokens: {prompt_tokens} prompt, {uncached_tokens} uncached")
        self.end(lease_id, now_s)
        if len(self._leases) >= self._max_leases:
            oldest = next(iter(self._leases))
            self._give_back(self._leases.pop(oldest))
            self._pushed_out.append(oldest)
            self.expired += 1
            self.pushed_out += 1
        self._leases[lease_id] = _Lease(
            slot, prompt_tokens, uncached_tokens, round(answer_tokens), False, now_s + self._ttl_s
        )
        block = self._block
        block[_QUEUED, slot] += prompt_tokens
        block[_PENDING, slot] += uncached_tokens
        block[_RUNNING, slot] += 1.0

    def first_token(self, lease_id: str, now_s: float) -> bool:
        """Prefill is over: give back the uncached tokens, count as decoding, renew the lease.

        Returns:
            False when there is no such lease, its slot was forgotten, or it had its first token before.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.decoding or lease.slot == _NOWHERE:
            return False
        self._block[_PENDING, lease.slot] -= lease.uncached_tokens
        self._block[_DECODING, lease.slot] += 1.0
        self._block[_CONTEXT, lease.slot] += lease.context_tokens
        lease.decoding = True
        lease.expires_at_s = now_s + self._ttl_s
        del self._leases[lease_id]
        self._leases[lease_id] = lease
        return True

    def move(self, lease_id: str, slot: int, uncached_tokens: int) -> bool:
        """Count the request on another slot, with what it has to prefill there; its time goes on.

        Returns:
            False when there is no such lease, or it is there already.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.slot == slot:
            return False
        self._give_back(lease)
        lease.slot, lease.uncached_tokens = slot, uncached_tokens
        block = self._block
        block[_QUEUED, slot] += lease.prompt_tokens
        block[_RUNNING, slot] += 1.0
        if lease.decoding:
            block[_DECODING, slot] += 1.0
            block[_CONTEXT, slot] += lease.context_tokens
        else:
            block[_PENDING, slot] += uncached_tokens
        return True

    def end(self, lease_id: str, now_s: float) -> bool:  # noqa: ARG002 - one shape for all reports
        """Give back all that the lease still holds.

        Returns:
            False when there is no such lease (it ended or expired before) or its slot was forgotten.
        """
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        return self._give_back(lease)

    def live(self, lease_id: str) -> bool:
        """Whether the lease exists and still counts: its endpoint has not left or restarted since."""
        lease = self._leases.get(lease_id)
        return lease is not None and lease.slot != _NOWHERE

    def take_pushed_out(self) -> list[str]:
        """Ids of the leases that gave way to newer ones since the last call."""
        ids, self._pushed_out = self._pushed_out, []
        return ids

    def expire(self, now_s: float) -> list[str]:
        """End the leases whose time is over; their ids.

        Costs as much as there is to expire. Leases of forgotten slots are reported too when their time comes,
        so that whoever remembers a request by its lease can forget it.
        """
        ids: list[str] = []
        while self._leases:
            oldest = next(iter(self._leases))
            if self._leases[oldest].expires_at_s > now_s:
                break
            self._give_back(self._leases.pop(oldest))
            self.expired += 1
            ids.append(oldest)
        return ids

    def forget(self, slot: int) -> int:
        """Void the slot's leases: nothing is counted for them any more. Returns how many."""
        voided = 0
        for lease in self._leases.values():
            if lease.slot == slot:
                lease.slot = _NOWHERE
                voided += 1
        self._block[:, slot] = 0.0
        return voided

    def _give_back(self, lease: _Lease) -> bool:
        slot, block = lease.slot, self._block
        if slot == _NOWHERE:
            return False
        block[_QUEUED, slot] -= lease.prompt_tokens
        block[_RUNNING, slot] -= 1.0
        if lease.decoding:
            block[_DECODING, slot] -= 1.0
            block[_CONTEXT, slot] -= lease.context_tokens
        else:
            block[_PENDING, slot] -= lease.uncached_tokens
        return True
