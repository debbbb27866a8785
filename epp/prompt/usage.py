"""The engine's own token counts, found in an answer that arrives in pieces of any size.

Owns the search for ``usage`` objects and their meaning in the APIs that engines speak; knows no transport
and no framing. An event stream and a whole JSON body are read by the same rule: ``"usage"`` followed by an
object. In generated text quotes are escaped, so that sequence of bytes is never part of an answer's words.

Rules: what is absent or of a wrong type is unknown (None), never 0; nothing that an engine sends raises; the
result does not depend on how the bytes were cut; memory is bounded by `MAX_OBJECT_BYTES` and one piece.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_OBJECT_BYTES = 4096
"""Longest ``usage`` object that is read, with its name. Engines send 60 to 400 bytes."""

_MAX_COUNT = 1 << 53
_NAME = b'"usage"'
_SPACE = b" \t\r\n"
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine says a request cost; None is unknown, never zero.

    Attributes:
        prompt_tokens: all tokens of the prompt, cached or not.
        completion_tokens: tokens of the answer.
        cached_tokens: those of the prompt that the KV cache already held. Engines tell it only when started
            so (vLLM ``--enable-prompt-tokens-details``, SGLang ``--enable-cache-report``), and SGLang leaves
            it out when it is 0.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE = Usage()


def usage_from(fields: object) -> Usage:
    """The counts in a decoded ``usage`` object of any of the APIs.

    OpenAI chat and completions: ``prompt_tokens``, ``completion_tokens``,
    ``prompt_tokens_details.cached_tokens``. OpenAI responses: ``input_tokens``, ``output_tokens``,
    ``input_tokens_details.cached_tokens``. Anthropic messages: ``input_tokens`` without what the cache
    served or took, ``cache_read_input_tokens``, ``cache_creation_input_tokens``, ``output_tokens``.
    """
    if not isinstance(fields, dict):
        return NO_USAGE
    prompt = _count(fields, "prompt_tokens")
    if prompt is None:
        prompt = _input_tokens(fields)
    completion = _count(fields, "completion_tokens")
    if completion is None:
        completion = _count(fields, "output_tokens")
    cached = _cached(fields, "prompt_tokens_details")
    if cached is None:
        cached = _cached(fields, "input_tokens_details")
    if cached is None:
        cached = _count(fields, "cache_read_input_tokens")
    return Usage(prompt, completion, cached)


def _count(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        return None
    return value


def _cached(fields: Mapping[str, object], name: str) -> int | None:
    details = fields.get(name)
    return _count(details, "cached_tokens") if isinstance(details, dict) else None


def _input_tokens(fields: Mapping[str, object]) -> int | None:
    tokens = _count(fields, "input_tokens")
    if tokens is None:
        return None
    apart = (_count(fields, name) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    return tokens + sum(count or 0 for count in apart)


def parse_usage(text: str | bytes) -> Usage:
    """The counts in the text of one ``usage`` object; unknown when it is not one."""
    try:
        return usage_from(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_USAGE


class UsageReader:
    """Reads an answer piece by piece; a later object's counts replace an earlier one's, each for itself.

    A piece without ``usage`` in it costs one search at C speed and a copy of its last six bytes.
    """

    __slots__ = ("_pending", "usage")

    def __init__(self) -> None:
        self.usage = NO_USAGE
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """The next piece; `usage` is what is known after it."""
        if self._pending:
            data = self._pending + data
        start = data.find(_NAME)
        while start >= 0:
            window = data[start : start + MAX_OBJECT_BYTES]
            end = _object_end(window)
            if end is None and len(window) < MAX_OBJECT_BYTES:
                self._pending = data[start:]
                return
            if end:
                self._take(parse_usage(window[window.index(b"{") : end]))
                start += end
            else:
                start += len(_NAME)
            data = data[start:]
            start = data.find(_NAME)
        self._pending = data[-(len(_NAME) - 1) :]

    def _take(self, found: Usage) -> None:
        last = self.usage
        self.usage = Usage(
            last.prompt_tokens if found.prompt_tokens is None else found.prompt_tokens,
            last.completion_tokens if found.completion_tokens is None else found.completion_tokens,
            last.cached_tokens if found.cached_tokens is None else found.cached_tokens,
        )


def _object_end(window: bytes) -> int | None:
    """End of the object after the name that the window starts with: 0 if none, None if not yet known."""
    at = len(_NAME)
    for wanted in b":{":
        while at < len(window) and window[at] in _SPACE:
            at += 1
        if at == len(window):
            return None
        if window[at] != wanted:
            return 0
        at += 1
    depth = 1
    for token in _TOKENS.finditer(window, at):
        text = token.group()
        if text == b'"':
            return None
        if text == b"{":
            depth += 1
        elif text == b"}":
            depth -= 1
            if depth == 0:
                return token.end()
    return None
