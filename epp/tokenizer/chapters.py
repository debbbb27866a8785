"""How a text begins that was seen before: where it is cut and what that counts, without looking at it again.

Owns the entries of whole beginnings in a model's `PieceCache`. A text's chapters end at every multiple of so
many bytes; a chapter's key is the hash of all that is before its end, and its entry holds the cuts in it and
the tokens before each. So the known part of a conversation costs a hash, not a search for seams and a look-up
for every piece. Keeps no text.

A cut depends on what is to the left of it and on `margin` bytes to the right. Cuts nearer to a chapter's end
than that belong to the next chapter.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import takewhile
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.tokenizer.cache import PieceCache

CHAPTER_BYTES = 4096


class Chapters:
    """The beginning of one text.

    Args:
        text: the text.
        cache: where entries are kept.
        seed: keys the hashes; texts that are cut in another way need another one.
        margin: bytes to the right of a cut that it depends on.
        chapter_bytes: bytes of a chapter.

    Attributes:
        ends: the cuts that are known, ascending.
        tokens: tokens before each of them.
    """

    def __init__(
        self, text: bytes, cache: PieceCache, *, seed: int, margin: int, chapter_bytes: int = CHAPTER_BYTES
    ) -> None:
        self._cache, self._margin, self._chapter_bytes = cache, margin, chapter_bytes
        digest, view = xxhash.xxh3_128(seed=seed), memoryview(text)
        self._keys: list[int] = []
        for end in range(chapter_bytes, len(text) + 1, chapter_bytes):
            digest.update(view[end - chapter_bytes : end])
            self._keys.append(digest.intdigest())
        found = list(takewhile(lambda entry: isinstance(entry, bytes), cache.find(self._keys)))
        self._known = len(found)
        self.ends: list[int] = []
        self.tokens: list[int] = []
        for entry in found:
            words = array("I", entry).tolist()  # type: ignore[arg-type]  # bytes: see takewhile
            self.ends += words[: len(words) // 2]
            self.tokens += words[len(words) // 2 :]

    def remember(self, ends: Sequence[int], tokens: Sequence[int]) -> None:
        """All cuts of the text, and tokens before each: keep those of the chapters that were not known."""
        entries, start = [], len(self.ends)
        for number in range(self._known, len(self._keys)):
            stop = bisect_right(ends, (number + 1) * self._chapter_bytes - self._margin)
            entries.append(
                (self._keys[number], array("I", (*ends[start:stop], *tokens[start:stop])).tobytes())
            )
            start = stop
        self._cache.add(entries)
