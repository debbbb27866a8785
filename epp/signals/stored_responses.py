"""Responses that engines store, and who has which.

Owns one entry per response: the endpoint's slot, which of its processes, and when it was stored. An engine
keeps responses in its own memory: another replica answers 404 to their ids, and so does the next process.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable

#: Responses that are known, some 250 bytes each.
MOST = 100_000
#: Engines keep a response for as long as they run (vLLM, SGLang), and tell nobody when they drop one. A wrong
#: entry costs little, for any other endpoint answers 404 as well: a day is what clients come back within.
MOST_AGE_S = 86_400.0


def key_of(response_id: str) -> int:
    """Hash a response's id to 8 bytes. Ids are random: nobody guesses one from its hash."""
    return xxhash.xxh3_64_intdigest(response_id.encode(errors="replace"))


class StoredResponses:
    """Slots by key of a response, the oldest first."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, int, float]] = {}  # slot, which process of it, and when
        self._processes = Counter[int | None]()  # those before, by slot
        #: Called with slot and key of a response that is new to this picker.
        self.on_store: dict[str, Callable[[int, int], None]] = {}

    def store(self, slot: int, key: int, now_s: float) -> None:
        """Note that an endpoint's engine stores a response."""
        if self.slot(key, now_s) != slot:
            self.hold(slot, key, now_s)
            for listener in self.on_store.values():
                listener(slot, key)

    def hold(self, slot: int, key: int, now_s: float) -> None:
        """Note what another picker has noted."""
        entries = self._entries
        entries.pop(key, None)
        entries[key] = slot, self._processes[slot], now_s
        if len(entries) > MOST:
            del entries[next(iter(entries))]

    def slot(self, key: int, now_s: float) -> int | None:
        """Return the slot whose engine has a response; None where nobody is known to."""
        slot, process, stored_s = self._entries.get(key, (None, 0, 0.0))
        return slot if process == self._processes[slot] and now_s - stored_s < MOST_AGE_S else None

    def keys(self, slot: int) -> list[int]:
        """List the responses that a slot's engine has."""
        there = slot, self._processes[slot]
        return [key for key, entry in self._entries.items() if entry[:2] == there]

    def forget(self, slot: int) -> None:
        """Another process, or none, is behind the slot."""
        self._processes[slot] += 1
