"""Chat requests to measure with: conversations of a given length, and the same a turn later.

Owns the text. It has what real text has - line ends and quotes to be unescaped, no two conversations alike
beyond their system prompt - and is a pure function of its arguments, so every run and every tree measures
the same bytes.
"""

from __future__ import annotations

import json
import random
from functools import cache

#: As `epp.tokens.estimate.DEFAULT_BYTES_PER_TOKEN`: a length in tokens is four times as many bytes of text.
BYTES_PER_TOKEN = 4
#: Share of a prompt that an earlier turn has put into a cache already.
KNOWN = 0.9
MODEL = "bench-model"
_SYSTEM_BYTES, _MESSAGE_BYTES = 2048, 3000
_LONG_BYTES = 4_000_000
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which",
    "one", "you", "were", "all", "her", "she", "there", "would", "their", "we", "him", "been", "has",
    "when", "who", "will", "no", "more", "if", "out", "so", '"said"', "what", "up", "its", "about",
    "into", "than", "them", "can", "only", "other", "new", "some", "could", "time", "these", "two",
    "may", "then", "do\n",
)  # fmt: skip


def conversation(tokens: int, seed: int) -> tuple[bytes, bytes]:
    """Bodies of one conversation: the turn before, `KNOWN` of the whole, and the whole.

    Args:
        tokens: length of the whole; a body is about four times as many bytes.
        seed: which conversation.
    """
    size = tokens * BYTES_PER_TOKEN
    return _body(size, int(size * KNOWN), seed), _body(size, size, seed)


def opening() -> bytes:
    """The body of the system prompt that all conversations share, with hardly a word after it."""
    return _encoded([{"role": "system", "content": _system()}, {"role": "user", "content": "Hello."}])


@cache
def _system() -> str:
    return _text(_SYSTEM_BYTES, 0)


def _body(whole: int, size: int, seed: int) -> bytes:
    messages = []
    if whole >= 2 * _SYSTEM_BYTES:
        messages.append({"role": "system", "content": _system()})
    used, number = len(messages) * _SYSTEM_BYTES, 0
    while used < size:
        length = min(_MESSAGE_BYTES, whole - used)
        text = _text(length, seed * 100_003 + number + 1)[: max(size - used, 1)]
        messages.append({"role": "assistant" if number % 2 else "user", "content": text})
        used, number = used + length, number + 1
    return _encoded(messages)


def _encoded(messages: list[dict[str, str]]) -> bytes:
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 256}
    return json.dumps(body).encode()


def _text(size: int, seed: int) -> str:
    """A stretch of one long text: no two seeds begin at one place, but for one in a million."""
    whole = _long_text()
    at = (seed * 2_654_435_761) % (len(whole) - size)
    return whole[at : at + size]


@cache
def _long_text() -> str:
    chance = random.Random(7)  # noqa: S311  # the same text for everyone
    return " ".join(chance.choices(_WORDS, k=_LONG_BYTES // 4))
