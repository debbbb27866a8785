"""Whether a text may be cut here and whether a faster encoder says the same: the tokenizer itself is asked.

Owns the questions. `safe_markers` and `safe_pairs` find the seams of `epp.prompt.seams` that hold for a
tokenizer; `first_difference` compares an encoder with it. Questions are built from one or more members of
every class of characters that expressions of pre-tokenizers tell apart: letters of several scripts and
cases, contractions, digits, punctuation, brackets, blanks and line ends of every kind, marks that combine,
emoji, what NFC and NFKC change, and the model's own special tokens.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from epp.prompt.seams import PAIRS, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tokenizers import AddedToken, Tokenizer

ATOMS = (
    "a", "Q", "ing", "the", "é", "e\u0301", "ß", "中", "\uff0c", "カ", "한", "я", "'s", "'LL", "7", "1234",
    "٣", ".", '"', "({", "/", "_", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "😀",
    "👨\u200d👩", "ﬁ", "Ω", "\ufeff", "\u0300",
)  # fmt: skip
#: Markers beyond this many are left out: each costs a search through every text.
MAX_MARKERS = 24
#: Entries of the vocabulary whose own text both encoders are given.
_VOCABULARY_SAMPLE = 4096


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts by the tokenizer, nothing added around them."""
    return [found.ids for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def safe_markers(tokenizer: Tokenizer, wanted: Iterable[str]) -> list[str]:
    """Those special tokens before which every text may be cut.

    They are matched in the raw text, take nothing of what is around them, and no other added token can
    begin before one and end inside of it.
    """
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    found = []
    for text in dict.fromkeys(wanted):
        token = added.get(text)
        plain = token is not None and not (token.normalized or token.lstrip or token.single_word)
        if plain and not any(_reaches_into(other, text) for other in added):
            found.append(text)
    return found[:MAX_MARKERS]


def _reaches_into(other: str, marker: str) -> bool:
    """Whether ``other`` can begin before a marker and cover its first character."""
    start = other.find(marker[0], 1)
    while start > 0:
        rest = other[start:]
        if rest.startswith(marker) or marker.startswith(rest):
            return True
        start = other.find(marker[0], start + 1)
    return False


def safe_pairs(tokenizer: Tokenizer, *, drop_space: bool) -> list[Pair]:
    """Those kinds of seams inside of text that hold for the tokenizer.

    Holds for texts without any of `spanning_tokens`.

    Args:
        tokenizer: is asked.
        drop_space: whether pieces lose the space that they begin with.
    """
    added = list(tokenizer.get_added_tokens_decoder().values())
    words = spellings(tokenizer, with_added=False)
    return [
        pair
        for pair in PAIRS
        if not any(pair.straddles.search(word) for word in words)
        and not any(_takes_part(token, pair) for token in added)
        and _holds(tokenizer, pair, drop_space=drop_space)
    ]


def spanning_tokens(tokenizer: Tokenizer) -> list[str]:
    """Added tokens that a seam could cut in two: placeholders with blanks in their names, for instance."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return [text for text in added if any(pair.straddles.search(text) for pair in PAIRS)]


def spellings(tokenizer: Tokenizer, *, with_added: bool) -> list[str]:
    """What the entries of the vocabulary stand for, as text, in either of the two alphabets in use."""
    bytes_of = {char: byte for byte, char in byte_alphabet().items()}
    texts = []
    for word in tokenizer.get_vocab(with_added_tokens=with_added):
        texts.append(word.replace("▁", " "))
        if "Ġ" in word or any(char in "äåæçèéãï" for char in word):
            raw = bytes(bytes_of[char] for char in word if char in bytes_of)
            texts.append(raw.decode(errors="ignore"))
    return texts


def byte_alphabet() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2's table).

    Bytes that print as Latin-1 stand for themselves; the others, in order, for U+0100 and on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + rank) for rank, byte in enumerate(others)}


def _takes_part(token: AddedToken, pair: Pair) -> bool:
    """Whether an added token eats what is beside it, or is not matched in the raw text."""
    if not (token.lstrip or token.rstrip or token.single_word or token.normalized):
        return False
    return any(
        token.content.endswith(left) or token.content.startswith(right.strip()[:1])
        for left, right in pair.samples
    )


def _holds(tokenizer: Tokenizer, pair: Pair, *, drop_space: bool) -> bool:
    """Whether the ids of both sides are those of the whole, in all neighbourhoods."""
    singles, doubles = ["", *ATOMS], [*map("".join, product(ATOMS, repeat=2))]
    sides: list[tuple[str, str]] = []
    for number, (left, right) in enumerate(pair.samples):
        # The neighbourhood on the far left first, then that on the far right: they do not act together.
        around = singles if number else singles + doubles
        sides += [(before + left, right) for before in around]
        sides += [(f"{near}{left}", right + after) for near in ("", "\n") for after in around]
    lefts, rights = [left for left, _ in sides], [right for _, right in sides]
    cut = [right[1:] if drop_space and right.startswith(" ") else right for right in rights]
    wholes = encode_all(tokenizer, [left + right for left, right in zip(lefts, rights, strict=True)])
    starts, ends_ids = encode_all(tokenizer, lefts), encode_all(tokenizer, cut)
    return all(whole == start + end for whole, start, end in zip(wholes, starts, ends_ids, strict=True))


def first_difference(tokenizer: Tokenizer, encode: Callable[[str], list[int]]) -> str | None:
    """The first text for which an encoder says something else than the tokenizer; None when there is none."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    vocabulary = sorted(spellings(tokenizer, with_added=True))
    texts = list(ATOMS)
    texts += map("".join, product(ATOMS, repeat=2))
    texts += [
        "".join(ATOMS[(start + step * number) % len(ATOMS)] for number in range(24))
        for start in range(len(ATOMS))
        for step in (1, 5, 7, 11, 13)
    ]
    texts += [f"{left}{token}{right}" for token in added[:32] for left, right in _AROUND]
    texts += vocabulary[:: max(len(vocabulary) // _VOCABULARY_SAMPLE, 1)]
    for text, ids in zip(texts, encode_all(tokenizer, texts), strict=True):
        if encode(text) != ids:
            return text
    return None


_AROUND = (("", ""), ("a", "b"), (" ", " "), ("\n", "\n"), ("a ", " 7"))
