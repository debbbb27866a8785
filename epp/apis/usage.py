"""The engine's own token counts, found in an answer that arrives in pieces of any size.

Owns the search for ``usage`` and ``meta_info`` objects and their meaning in the APIs that engines speak;
knows no transport and no framing. An event stream and a whole JSON body are read by the same rule:
``"usage"`` or ``"meta_info"`` followed by an object. In generated text quotes are escaped, so that sequence
of bytes is never part of an answer's words.

Rules: what is absent or of a wrong type is unknown (None), never 0; nothing that an engine sends raises; the
result does not depend on how the bytes were cut; memory is bounded by `MAX_OBJECT_BYTES` and one piece.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_OBJECT_BYTES = 4096
"""Longest ``usage`` object that is read, with its name. Engines send 60 to 400 bytes."""
MAX_BATCH = 1024
"""Prompts of one batch whose counts are told apart; of what comes after them nothing is known."""

_MAX_COUNT = 1 << 53
_USAGE, _META = b'"usage"', b'"meta_info"'
_LONGEST_NAME = max(len(_USAGE), len(_META))
_COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_SPACE = b" \t\r\n"
_NAMES = re.compile(b"|".join((_USAGE, _META)))
#: What follows a name whose value is an object, and what may yet become that.
_OBJECT, _MAYBE = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\{"), re.compile(rb"[ \t\r\n]*+(?::[ \t\r\n]*+)?+")
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}]', re.DOTALL)


class Usage(Struct, frozen=True):
    """What the engine says a request cost; None is unknown, never zero; counts below 0 are kept as sent.

    Attributes:
        prompt_tokens: all tokens of the prompt, cached or not.
        completion_tokens: tokens of the answer.
        cached_tokens: those of the prompt that the KV cache already held. Engines tell it only when started
            so (vLLM ``--enable-prompt-tokens-details``, SGLang ``--enable-cache-report``), and both leave it
            out when it is 0, which `epp.schedule.feedback.with_cached` minds.
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
    served or took, ``cache_read_input_tokens``, ``cache_creation_input_tokens``, ``output_tokens``. SGLang's
    ``meta_info``: ``prompt_tokens``, ``completion_tokens``, ``cached_tokens``. Rankings may tell only
    ``total_tokens``, all of them the prompt's.
    """
    if not isinstance(fields, dict):
        return NO_USAGE
    prompt = _count(fields, "prompt_tokens")
    if prompt is None:
        prompt = _input_tokens(fields)
    completion = _count(fields, "completion_tokens")
    if completion is None:
        completion = _count(fields, "output_tokens")
    if prompt is None and completion is None:
        prompt = _count(fields, "total_tokens")
    cached = _cached(fields, "prompt_tokens_details")
    if cached is None:
        cached = _cached(fields, "input_tokens_details")
    if cached is None:
        cached = _count(fields, "cache_read_input_tokens")
    if cached is None:
        cached = _count(fields, "cached_tokens")
    return Usage(prompt, completion, cached)


def _count(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_MAX_COUNT < value < _MAX_COUNT:
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
    counts = [tokens, *(count or 0 for count in apart)]
    return min(counts) if min(counts) < 0 else sum(counts)


def parse_usage(text: str | bytes) -> Usage:
    """The counts in the text of one ``usage`` object; unknown when it is not one."""
    try:
        return usage_from(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_USAGE


class UsageReader:
    """Reads an answer piece by piece; a later object's counts replace an earlier one's, each for itself.

    Anthropic's stream tells the prompt at its start and the answer at its end, and either may repeat the
    other's counts. The prompts of SGLang's batches are told apart by ``meta_info.id`` and added up. A piece
    without either name in it costs two searches at C speed and a copy of its last ten bytes.

    Args:
        lines: a line is one document, whose last counts are its own: those before them are in what a model or
            a client wrote (a tool's input, a tool's description), and are forgotten.
    """

    __slots__ = ("_batch", "_fields", "_line_over", "_lines", "_pending", "_told_before", "usage")

    def __init__(self, *, lines: bool = False) -> None:
        self.usage = NO_USAGE
        self._lines = lines
        self._line_over = True
        self._told_before: dict[str, object] = {}  # up to the line before
        self._pending = b""
        self._fields: dict[str, object] = {}
        self._batch: dict[str, Usage] = {}

    def feed(self, data: bytes) -> None:
        """The next piece; `usage` is what is known after it."""
        if self._pending:
            data = self._pending + data
        # Nothing is copied but what is kept: a piece is walked once, however many names are in it.
        at = kept = 0
        while (found := _NAMES.search(data, at)) is not None:
            start, name = found.start(), found.group()
            window = data[start : start + MAX_OBJECT_BYTES] if _opens(data, found.end()) else b""
            end = _object_end(window, len(name)) if window else _none_or_open(data, found.end())
            if end is None:
                if len(data) - start < MAX_OBJECT_BYTES:
                    self._pending = data[start:]
                    self._look_for_line_end(data, kept, start)
                    return
                at = start + MAX_OBJECT_BYTES  # too long; whatever else is in the window lies within it
                continue
            if end:
                if name == _USAGE:
                    self._look_for_line_end(data, kept, start)
                    kept = start + end
                self._take(window[window.index(b"{") : end], meta=name == _META)
            at = start + (end or len(name))
        self._pending = data[max(at, len(data) - _LONGEST_NAME + 1) :]
        self._look_for_line_end(data, kept, len(data))

    def _look_for_line_end(self, data: bytes, start: int, end: int) -> None:
        """Whether a line has ended since the last ``usage``, of which there must be one."""
        if self._lines and not self._line_over:
            self._line_over = data.find(b"\n", start, end) >= 0

    def _take(self, text: bytes, *, meta: bool) -> None:
        try:
            fields = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return
        if not isinstance(fields, dict):
            return
        if meta:
            self._take_one_of_batch(fields)
            return
        told = {name: fields[name] for name in _COUNTS if _count(fields, name) is not None}
        told |= {name: fields[name] for name in _DETAILS if _cached(fields, name) is not None}
        if not told:
            return
        if self._lines and self._line_over:
            self._told_before, self._line_over = self._fields, False
        self._fields = (self._told_before if self._lines else self._fields) | told
        self.usage = usage_from(self._fields)

    def _take_one_of_batch(self, fields: Mapping[str, object]) -> None:
        name = fields.get("id")
        name = name if isinstance(name, str) else ""
        before = self._batch.get(name, NO_USAGE)
        if name not in self._batch and len(self._batch) >= MAX_BATCH:
            return
        now = usage_from(fields)
        self._batch[name] = Usage(
            before.prompt_tokens if now.prompt_tokens is None else now.prompt_tokens,
            before.completion_tokens if now.completion_tokens is None else now.completion_tokens,
            before.cached_tokens if now.cached_tokens is None else now.cached_tokens,
        )
        self.usage = Usage(
            _moved(self.usage.prompt_tokens, before.prompt_tokens, now.prompt_tokens),
            _moved(self.usage.completion_tokens, before.completion_tokens, now.completion_tokens),
            _moved(self.usage.cached_tokens, before.cached_tokens, now.cached_tokens),
        )


def _moved(total: int | None, before: int | None, now: int | None) -> int | None:
    """A total in which one of its counts has changed; what becomes unknown keeps its last count."""
    return total if now is None else (total or 0) - (before or 0) + now


def _opens(data: bytes, at: int) -> bool:
    """Whether an object begins behind the name that ends at ``at``."""
    return _OBJECT.match(data, at) is not None


def _none_or_open(data: bytes, at: int) -> int | None:
    """0 where no object can begin behind the name that ends at ``at``, None where more bytes must tell."""
    return None if _MAYBE.fullmatch(data, at) else 0


def _object_end(window: bytes, at: int) -> int | None:
    """End of the object after the name of `at` bytes in front: 0 if there is none, None if not yet known."""
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
