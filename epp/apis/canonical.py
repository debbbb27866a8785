"""Canonical bytes: the prompt of any API as one framed string of bytes.

Owns the framing. A frame is the byte 0xFF, a tag of one letter, and content. Text is UTF-8, where 0xFF never
occurs, so no text can pass for structure; nothing is closed or counted in advance, so that a longer
conversation starts with the bytes of the shorter. Token ids are words of four bytes, which may hold 0xFF:
they stand alone, and `_BETWEEN`, which is no id, keeps several prompts apart. Knows no API.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec

_TEXT_MARK, _IDS_MARK = b"\xff", b"\xffI"
_MEDIA_MARK, _MEDIA_TAG = b"\xffM", b"M"
_ROLE, _SAID = b"\xffR", b"\xffC"
_BETWEEN, _BETWEEN_WORD = 0xFFFF_FFFF, b"\xff\xff\xff\xff"
_MEDIA = re.compile(rb"\xffM([0-9a-f]+)")
#: A word for a piece of media has the highest bit set, which no token id of a tokenizer has.
_MEDIA_WORD = 0x8000_0000
#: Bytes that stand for one token of media.
MEDIA_BYTES_PER_TOKEN = 4
#: Tools, calls and other structured values of one request. Each costs more than the byte that can spell it;
#: a context of a million tokens has room for a fifth of so many calls and their results.
MAX_VALUES = 100_000
#: Texts, or lists of token ids, of one request that stand for themselves: prompts of a batch, documents,
#: parts. Each costs far more than the three bytes that can spell it; engines take batches of thousands.
MAX_TEXTS = 100_000
#: Frames that are looked at one by one for media. A prompt of more is short texts mostly.
_MOST_LOOKED_AT = 10_000
_ENCODER = msgspec.json.Encoder(order="deterministic")
_AS_IT_CAME = msgspec.json.Encoder()
#: Of tools and calls, as engines read them into objects of their own.
_API_KEYS = ("id", "type", "function", "name", "description", "parameters", "arguments")
#: How most clients write them: in order.
_USUAL_KEYS = frozenset(
    {
        ("type", "function"),
        ("id", "type", "function"),
        ("name", "description", "parameters"),
        ("name", "description", "parameters", "strict"),
        ("name", "arguments"),
    }
)


class Frames:
    """Builds canonical bytes frame by frame.

    Attributes:
        text_only: no frame is one of media.
    """

    __slots__ = ("_bare", "_parts", "_values", "text_only")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bare = self._values = 0
        self.text_only = True

    def add_text(self, tag: bytes, text: str) -> None:
        """A piece of text; unpaired surrogates, which no decoded body holds, become question marks."""
        self._parts += (_TEXT_MARK, tag, text.encode("utf-8", "replace"))

    def add_bare(self, tag: bytes, text: str) -> None:
        """A piece of text that is no more than that in the body.

        Raises:
            ValueError: more than `MAX_TEXTS` came.
        """
        self._bare += 1
        check_texts(self._bare)
        self.add_text(tag, text)

    def add_said(self, role: str, text: str) -> None:
        """Who speaks (``R``) and what is said (``C``), at once: what most messages are."""
        self._parts += (_ROLE, role.encode("utf-8", "replace"), _SAID, text.encode("utf-8", "replace"))

    def add_json(self, tag: bytes, value: object) -> None:
        """A structured value in one spelling: keys sorted, no blanks.

        Raises:
            ValueError: the value has no JSON spelling, is nested too deeply, or more than `MAX_VALUES` came.
        """
        self._add_value(tag, value, _ENCODER)

    def add_described(self, tag: bytes, value: object) -> None:
        """A tool or a call, its keys in the order in which engines give them to templates.

        Those of the API in the API's order, whatever the client's. All others, a schema's above all, as they
        came: clients that write them in another order share nothing in the engine's cache.

        Raises:
            ValueError: as `add_json`.
        """
        self._add_value(tag, _in_order(value), _AS_IT_CAME)

    def _add_value(self, tag: bytes, value: object, encoder: msgspec.json.Encoder) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} tools, calls and other values")
        self._parts += (_TEXT_MARK, tag, _spell(value, encoder))

    @staticmethod
    def spell(value: object) -> str:
        """A value as JSON in the order in which its keys came.

        Raises:
            ValueError: as `add_json`.
        """
        return _spell(value, _AS_IT_CAME).decode()

    def add_media(self, identity: bytes, tokens: int) -> None:
        """An image, a recording, a file: its identity, as long as its tokens and not as its megabytes.

        Args:
            identity: its name in hexadecimal digits.
            tokens: what it costs; the frame repeats the identity over that many times
                `MEDIA_BYTES_PER_TOKEN`, so that blocks cover about as many tokens here as in text.
        """
        self.text_only = False
        size = max(tokens * MEDIA_BYTES_PER_TOKEN, len(identity))
        self._parts += (_MEDIA_MARK, (identity * -(-size // len(identity)))[:size])

    def bytes(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)


def check_texts(count: int) -> None:
    """Refuse more texts than any engine takes.

    Raises:
        ValueError: they are more than `MAX_TEXTS`.
    """
    if count > MAX_TEXTS:
        raise ValueError(f"more than {MAX_TEXTS} texts")


def frame_token_ids(prompts: list[list[int]]) -> bytes:
    """Canonical bytes of prompts given as token ids.

    Raises:
        ValueError: an id is not from 0 to 4294967294.
    """
    try:
        framed = [array("I", ids).tobytes() for ids in prompts]
    except OverflowError:
        framed = []
    # Millions of ids are looked at one by one only where their bytes, on whatever borders, look like it.
    odd = any(_BETWEEN_WORD in words and _BETWEEN in ids for words, ids in zip(framed, prompts, strict=False))
    if odd or len(framed) != len(prompts):
        raise ValueError(f"token ids must be from 0 to {_BETWEEN - 1}")
    return _IDS_MARK + _BETWEEN_WORD.join(framed)


def media_words(identity: bytes, count: int) -> list[int]:
    """So many words that stand for a piece of media among token ids, four different ones in turn.

    Args:
        identity: its name, 32 hexadecimal digits.
        count: tokens that it takes.
    """
    turn = [int(identity[start : start + 8], 16) & 0x7FFF_FFFE | _MEDIA_WORD for start in range(0, 32, 8)]
    return (turn * -(-count // 4))[:count]


def media_bytes(canonical: bytes) -> int:
    """Bytes of a prompt's media frames without marks: `MEDIA_BYTES_PER_TOKEN` for each of their tokens."""
    if canonical.startswith(_IDS_MARK) or not _has_media(canonical):
        return 0
    return sum(map(len, _MEDIA.findall(canonical)))


def exact_tokens(canonical: bytes) -> int | None:
    """Tokens of a prompt given as token ids, None for one given as text."""
    if not canonical.startswith(_IDS_MARK):
        return None
    framed = canonical[len(_IDS_MARK) :]
    if len(framed) % 4:  # bytes that no parser made
        return None
    words = array("I", framed)
    return len(words) - words.count(_BETWEEN)


def text_bytes(canonical: bytes) -> int:
    """Bytes of a prompt that is text alone; 0 for token ids or media, from which no ratio can be learned."""
    if canonical.startswith(_IDS_MARK) or _has_media(canonical):
        return 0
    return len(canonical)


def _has_media(canonical: bytes) -> bool:
    """Whether any frame is one of media.

    From mark to mark: one byte is found by wide instructions of the processor, two are looked for one by one.
    """
    find, at = canonical.find, canonical.find(_TEXT_MARK)
    for _ in range(_MOST_LOOKED_AT):
        if at < 0:
            return False
        if canonical[at + 1 : at + 2] == _MEDIA_TAG:
            return True
        at = find(_TEXT_MARK, at + 1)
    return at >= 0 and find(_MEDIA_MARK, at) >= 0


def _in_order(value: object) -> object:
    if not isinstance(value, dict):
        return value
    ordered = _known_first(value)
    function = ordered.get("function")
    if isinstance(function, dict) and (inner := _known_first(function)) is not function:
        return ordered | {"function": inner}
    return ordered


def _known_first(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) <= len(_API_KEYS) and tuple(value) in _USUAL_KEYS:
        return value
    return {key: value[key] for key in _API_KEYS if key in value} | value


def _spell(value: object, encoder: msgspec.json.Encoder = _ENCODER) -> bytes:
    try:
        return encoder.encode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
