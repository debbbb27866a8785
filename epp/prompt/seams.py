r"""Places where a text may be cut without changing its tokens: what makes counting incremental.

Owns the cutting. A text is cut from the left, each time at the first seam that is at least ``least_bytes``
further on. Where it is cut depends on what is to the left and on two characters to the right, so texts with
a common prefix have all pieces in common but the last ones, and a piece that has been counted is known again
wherever it stands.

A seam is safe for a tokenizer when the ids of the whole are the ids of the pieces, one after the other:

* Before a *marker*: a special token that tokenizers find in the raw text before anything else happens to
  it. What is left and right of it never meets.
* At a `PAIRS` seam between two characters ``a|b``, provided that no entry of the vocabulary has ``a``
  directly before ``b`` (then no merge, and no path through a lattice, can cross) and that normalizer and
  pre-tokenizer treat both sides alone as they do together. The first is read off the vocabulary. The second
  depends on regular expressions of the model: the tokenizer itself is asked, over all neighbourhoods of
  character classes (`epp.tokenizer.proof`). Why these pairs: a word's last letter ends a pre-token in every
  expression in use, and none looks back; no normal form joins the characters at these seams.

Texts are UTF-8; every seam lies between characters. Pure: knows no tokenizer library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Finder = Callable[[bytes, int], int]

LEAST_BYTES = 512
#: Bytes to the right of a `PAIRS` seam that make it one: an ideographic comma and a byte at a "clause".
_PAIR_REACH = 4
_NONE = 1 << 62


@dataclass(frozen=True, slots=True)
class Pair:
    """A kind of seam inside of text.

    Attributes:
        name: for logs and tests.
        around: expression of the characters around the seam; the seam is ``before`` bytes after its start.
        before: bytes of the last character before the seam.
        straddles: what an entry of the vocabulary must not hold, as an expression on text.
        samples: pairs of a last character and the first characters that meet at such seams.
        after: bytes that every such seam is before, where they are rare: searched for first.
        in_ascii: whether there are such seams in ASCII text.
    """

    name: str
    around: re.Pattern[bytes]
    before: int
    straddles: re.Pattern[str]
    samples: tuple[tuple[str, str], ...]
    after: bytes = b""
    in_ascii: bool = True


PAIRS = (
    Pair(
        "word",
        re.compile(rb"[A-Za-z] [A-Za-z]"),
        1,
        re.compile(r"[A-Za-z] "),
        (("a", " b"), ("Z", " A"), ("s", " s"), ("t", " D")),
    ),
    Pair(
        "quote",
        re.compile(rb'[A-Za-z0-9]",'),
        1,
        re.compile(r'[A-Za-z0-9]"'),
        (("a", '",'), ("Z", '",'), ("7", '",')),
        after=b'",',
    ),
    Pair(
        "clause",
        # a Han character, an ideographic comma, full stop or their like, a Han character
        re.compile(rb"[\xe4-\xe9][\x80-\xbf]{2}(?:\xef\xbc[\x81\x8c\x9f]|\xe3\x80[\x81\x82])[\xe4-\xe9]"),
        3,
        re.compile(r"[\u4000-\u9fff][\uff01\uff0c\uff1f\u3001\u3002]"),
        (("中", "\uff0c你"), ("界", "。我"), ("好", "\uff01的"), ("文", "、人")),
        in_ascii=False,
    ),
)


class Seams:
    """The seams that are safe for one tokenizer.

    Args:
        markers: special tokens before which a text may be cut.
        pairs: seams inside of text.
        least_bytes: shortest piece, but for the last one of a text.
        drop_space: a piece that starts with a space at a ``word`` seam is tokenized without it, because the
            tokenizer puts one before every text.
        unless: a text that holds this is cut at markers alone; none when empty.
    """

    def __init__(
        self,
        markers: Sequence[str] = (),
        pairs: Sequence[Pair] = (),
        *,
        least_bytes: int = LEAST_BYTES,
        drop_space: bool = False,
        unless: bytes = b"",
    ) -> None:
        if least_bytes < 1:
            raise ValueError(f"least_bytes {least_bytes} must be positive")
        self.markers, self.pairs, self.drop_space = tuple(markers), tuple(pairs), drop_space
        self._least = least_bytes
        self._unless = unless
        #: A seam is known by what is left of it and so many bytes to the right.
        self.reach = max([_PAIR_REACH, *(len(marker.encode()) for marker in markers)])
        self._at_markers: list[_Finder] = [_marker_finder(marker.encode()) for marker in markers]
        self._in_ascii = self._at_markers + [_pair_finder(pair) for pair in pairs if pair.in_ascii]
        self._anywhere = self._at_markers + [_pair_finder(pair) for pair in pairs]

    def at_markers_alone(self, text: bytes) -> bool:
        """Whether a text holds what makes it be cut at markers alone."""
        return bool(self._unless) and self._unless in text

    def ends(self, text: bytes, start: int = 0) -> list[int]:
        """Where the pieces of a text end, the last at its end; none for the empty text.

        Args:
            text: the text.
            start: an end that is known; those behind it are given.
        """
        ends: list[int] = []
        size, position = len(text), start + self._least
        finders = self._in_ascii if text.isascii() else self._anywhere
        if self.at_markers_alone(text):
            finders = self._at_markers
        hits = [-1] * len(finders)
        while position < size:
            for number, find in enumerate(finders):
                if hits[number] < position:
                    hits[number] = find(text, position)
            position = min(hits, default=_NONE)
            if position >= size:
                break
            ends.append(position)
            position += self._least
        if size:
            ends.append(size)
        return ends

    def spelled(self, piece: bytes, *, first: bool) -> str:
        """A piece as it is given to the tokenizer.

        Args:
            piece: as cut.
            first: whether it starts the text.
        """
        text = piece.decode()
        return text[1:] if self.drop_space and not first and text.startswith(" ") else text


def _marker_finder(marker: bytes) -> _Finder:
    def find(text: bytes, start: int) -> int:
        found = text.find(marker, start)
        return _NONE if found < 0 else found

    return find


def _pair_finder(pair: Pair) -> _Finder:
    search, match, before, after = pair.around.search, pair.around.match, pair.before, pair.after

    def find_rare(text: bytes, start: int) -> int:
        place = text.find(after, start)
        while place >= 0:
            if place >= before and match(text, place - before):
                return place
            place = text.find(after, place + 1)
        return _NONE

    def find(text: bytes, start: int) -> int:
        found = search(text, max(start - before, 0))
        return _NONE if found is None else found.start() + before

    return find_rare if after else find
