"""Canonical bytes: the prompt of any API as one framed string of bytes.

Owns the framing. A frame is the byte 0xFF, a tag of one letter, and content. Text is UTF-8, where 0xFF never
occurs, so no text can pass for structure; nothing is closed or counted in advance, so that a longer
conversation starts with the bytes of the shorter. Token ids are words of four bytes, which may hold 0xFF:
they stand alone, and `_BETWEEN`, which is no id, keeps several prompts apart. Knows no API.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.apis.decode import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT_MARK, _IDS_MARK, _MEDIA_MARK = b"\xff", b"\xffI", b"\xffM"
_ROLE, _SAID, _PROMPT = b"\xffR", b"\xffC", b"\xffP"
_BETWEEN, _BETWEEN_WORD = 0xFFFF_FFFF, b"\xff\xff\xff\xff"
_MEDIA = re.compile(rb"\xffM([0-9a-f]+)")
#: A word for a piece of media has the highest bit set, which no token id of a tokenizer has.
_MEDIA_WORD = 0x8000_0000
#: Bytes that stand for one token of media.
MEDIA_BYTES_PER_TOKEN = 4
#: Texts that stand for themselves, tools, calls and other values of one request. Each costs far more than the
#: three bytes that can spell it; engines take batches of thousands.
MAX_VALUES = 100_000
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
        text_only: no frame is one of media or of token ids.
        prompts: how many prompts there are, by those that come as texts or as token ids.
    """

    __slots__ = ("_joined_at", "_parts", "_values", "prompts", "text_only")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._values = 0
        self._joined_at = -1
        self.text_only = True
        self.prompts = 1

    def add_text(self, tag: bytes, text: str) -> None:
        """Add a piece of text; unpaired surrogates, which no decoded body holds, become question marks."""
        self._parts += (_TEXT_MARK, tag, text.encode("utf-8", "replace"))

    def add_bytes(self, tag: bytes, content: bytes) -> None:
        """Add a piece of text that is encoded already."""
        self._parts += (_TEXT_MARK, tag, content)

    def add_said(self, role: str, text: str) -> None:
        """Add who speaks (``R``) and what is said (``C``), at once: what most messages are.

        Nothing said is the same to engines as no content.
        """
        if text:
            self._parts += (_ROLE, role.encode("utf-8", "replace"), _SAID, text.encode("utf-8", "replace"))
        else:
            self.add_text(b"R", role)

    def add_piece(self, text: str, separator: str) -> None:
        """Add a piece of what is said, to the piece before where that is the last of all frames."""
        if self._joined_at == len(self._parts):
            self._parts.append((separator + text).encode("utf-8", "replace"))
        elif text:
            self._parts += (_SAID, text.encode("utf-8", "replace"))
        else:
            return
        self._joined_at = len(self._parts)

    def count_values(self, count: int = 1) -> None:
        """Count texts or values against the bound.

        Raises:
            ClientError: 400, there are more than `MAX_VALUES`.
        """
        self._values += count
        if self._values > MAX_VALUES:
            raise invalid(f"more than {MAX_VALUES} texts, tools, calls and other values")

    def add_json(self, tag: bytes, value: object) -> None:
        """Add a structured value in one spelling: keys sorted, no blanks.

        Raises:
            ClientError: 400, the value is nested too deeply, or too many came.
        """
        self.count_values()
        self._parts += (_TEXT_MARK, tag, spell(value, _ENCODER))

    def add_described(self, tag: bytes, value: object) -> None:
        """Add a tool or a call, its keys in the order in which engines give them to templates.

        Those of the API in the API's order, whatever the client's. All others, a schema's above all, as they
        came: clients that write them in another order share nothing in the engine's cache.

        Raises:
            ClientError: as `add_json`.
        """
        self.count_values()
        self._parts += (_TEXT_MARK, tag, described(value))

    def add_media(self, identity: bytes, tokens: int) -> None:
        """Add an image, a recording, a file: its identity, as long as its tokens and not as its megabytes.

        Args:
            identity: its name in hexadecimal digits.
            tokens: what it costs; the frame repeats the identity over that many times
                `MEDIA_BYTES_PER_TOKEN`, so that blocks cover about as many tokens here as in text.
        """
        self.text_only = False
        size = max(tokens * MEDIA_BYTES_PER_TOKEN, len(identity))
        self._parts += (_MEDIA_MARK, (identity * -(-size // len(identity)))[:size])

    def add_ids(self, prompts: Sequence[Sequence[int]], field: str) -> None:
        """Add prompts given as token ids, which stand alone.

        Args:
            prompts: the ids of each.
            field: the body's name for them.

        Raises:
            ClientError: 400, an id is no number from 0 to 4294967294.
        """
        self.text_only = False
        try:
            framed = [array("I", ids).tobytes() for ids in prompts]
        except (OverflowError, TypeError):
            framed = []
        # Millions of ids are looked at one by one only where their bytes, on whatever borders, look like it.
        odd = any(
            _BETWEEN_WORD in words and _BETWEEN in ids for words, ids in zip(framed, prompts, strict=False)
        )
        if odd or len(framed) != len(prompts):
            raise invalid(f"token ids must be from 0 to {_BETWEEN - 1}", field)
        self._parts += (_IDS_MARK, _BETWEEN_WORD.join(framed))

    def add_frames(self, other: Frames) -> None:
        """Add all frames of another prompt."""
        self.text_only &= other.text_only
        self._parts += (other.bytes(),)

    def bytes(self) -> bytes:
        """Return all of it."""
        return b"".join(self._parts)


def media_words(identity: bytes, count: int) -> list[int]:
    """Return words that stand for a piece of media among token ids, four different ones in turn.

    Args:
        identity: its name, 32 hexadecimal digits.
        count: tokens that it takes.
    """
    turn = [int(identity[start : start + 8], 16) & 0x7FFF_FFFE | _MEDIA_WORD for start in range(0, 32, 8)]
    return (turn * -(-count // 4))[:count]


def media_bytes(canonical: bytes) -> int:
    """Return bytes of a prompt's media frames without marks: `MEDIA_BYTES_PER_TOKEN` for each token."""
    return sum(map(len, _MEDIA.findall(canonical)))


def exact_tokens(canonical: bytes) -> int | None:
    """Return the tokens of a prompt given as token ids, None for one given as text."""
    if not canonical.startswith(_IDS_MARK):
        return None
    words = array("I", canonical[len(_IDS_MARK) :])
    return len(words) - words.count(_BETWEEN)


def exact_ids(canonical: bytes) -> bytes:
    """Return the token ids, 4 bytes each, of a prompt that is given as them alone; empty for others."""
    if not canonical.startswith(_IDS_MARK):
        return b""
    words = np.frombuffer(canonical, np.uint32, offset=len(_IDS_MARK))
    return words.tobytes() if words.max(initial=0) < _MEDIA_WORD else b""


def split_prompts(canonical: bytes) -> list[bytes]:
    """Return the canonical bytes of each of several prompts, as a request of that one alone has them.

    Prompts that are no plain texts and no token ids stay together.
    """
    if not canonical.startswith(_IDS_MARK):
        head, *texts = canonical.split(_PROMPT)
        return [head + _PROMPT + texts[0], *(_PROMPT + text for text in texts[1:])] if texts else [canonical]
    words = np.frombuffer(canonical, np.uint32, offset=len(_IDS_MARK))
    prompts = np.split(words, np.flatnonzero(words == _BETWEEN))
    return [_IDS_MARK + prompt.tobytes().removeprefix(_BETWEEN_WORD) for prompt in prompts]


def spell(value: object, encoder: msgspec.json.Encoder = _AS_IT_CAME) -> bytes:
    """Return a value as JSON, its keys in the order in which they came.

    Raises:
        ClientError: 400, it is nested too deeply.
    """
    try:
        return encoder.encode(value)
    except RecursionError:
        raise invalid("nested too deeply") from None


def described(value: object) -> bytes:
    """Spell a tool as `Frames.add_described` does.

    Raises:
        ClientError: 400, it is nested too deeply.
    """
    if isinstance(value, dict):
        value = _known_first(value)
        if isinstance(function := value.get("function"), dict):
            value["function"] = _known_first(function)
    return spell(value)


def _known_first(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) < len(_API_KEYS) and tuple(value) in _USUAL_KEYS:
        return value
    return {key: value[key] for key in _API_KEYS if key in value} | value
