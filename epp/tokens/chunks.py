"""Chunks of a rendered prompt whose tokens add up to the prompt's, so that only new ones are tokenized.

A prompt is cut before *markers*: special tokens that tokenizers find in the raw text before anything else
happens to it, so that what is left and right of one never meets. Prompts with a common beginning have all
chunks of it in common but the last.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenizers import Tokenizer

LEAST_BYTES = 512
#: Markers beyond this many are left out: each costs a search through every prompt.
MAX_MARKERS = 24
#: Counts kept for one tokenizer; 220 bytes each.
MAX_COUNTS = 100_000


def safe_markers(tokenizer: Tokenizer, wanted: Iterable[str]) -> list[bytes]:
    """Choose the special tokens before which every text may be cut.

    They take nothing of what is around them, and no other added token can begin before one and end inside it.
    """
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    found = []
    for text in dict.fromkeys(wanted):
        token = added.get(text)
        plain = token is not None and not (token.normalized or token.lstrip or token.single_word)
        if plain and not any(_reaches_into(other, text) for other in added):
            found.append(text.encode())
    return found[:MAX_MARKERS]


def _reaches_into(other: str, marker: str) -> bool:
    """Whether ``other`` can begin before a marker and cover its first character."""
    ends = (other[start:] for start in range(1, len(other)))
    return any(end.startswith(marker) or marker.startswith(end) for end in ends)


def split_points(text: bytes, markers: Sequence[bytes], least_bytes: int = LEAST_BYTES) -> list[int]:
    """Find where the chunks of a text end, the last at its end; none for the empty text."""
    size, position = len(text), least_bytes
    ends: list[int] = []
    next_at = [-1] * len(markers)
    while position < size:
        for number, marker in enumerate(markers):
            if next_at[number] < position:
                found = text.find(marker, position)
                next_at[number] = size if found < 0 else found
        position = min(next_at, default=size)
        ends.append(position)
        position += least_bytes
    if size and ends[-1:] != [size]:
        ends.append(size)
    return ends


class ChunkCounts:
    """Tokens of chunks by their hashes, the least recently used dropped first. Safe to use from threads.

    Args:
        max_counts: bound on what is kept.
    """

    def __init__(self, max_counts: int = MAX_COUNTS) -> None:
        self._max_counts = max_counts
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._lock = Lock()

    def find(self, keys: Sequence[int]) -> list[int | None]:
        """Return the count of each chunk, None where it is not known."""
        with self._lock:
            found = [self._counts.get(key) for key in keys]
            for key, count in zip(keys, found, strict=True):
                if count is not None:
                    self._counts.move_to_end(key)
        return found

    def add(self, counts: Iterable[tuple[int, int]]) -> None:
        """Keep counts."""
        with self._lock:
            self._counts.update(counts)
            while len(self._counts) > self._max_counts:
                self._counts.popitem(last=False)
