"""A streamed chat completion, read with as little work per chunk as the measurement allows.

Owns: finding the first token in a stream cut anywhere, and reading the whole stream once it has ended. Pure:
bytes and arrival times go in. Only the events up to the first token are decoded as they come; everything
after is kept and decoded at the end, so that a chunk costs one append while other requests are being timed.
"""

from __future__ import annotations

import msgspec

from epp.records.files import DAMAGED


class _Delta(msgspec.Struct):
    content: str | None = None
    # What a model thinks before it answers: the second is vLLM's name of late.
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class StreamedAnswer(msgspec.Struct, frozen=True):
    """What a finished stream said; None where it did not say.

    Attributes:
        content: the answer's text, without what was thought before.
        content_events: events that carried text, thoughts included.
        prompt_tokens: of ``usage``.
        completion_tokens: of ``usage``.
        cached_tokens: of ``usage.prompt_tokens_details``.
        error: an error event, an unreadable event, or a stream that stopped before its end; ``""`` if none.
    """

    content: str
    content_events: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    error: str


_DECODER = msgspec.json.Decoder(_Event)


class AnswerReader:
    """Reads one stream.

    Args:
        max_bytes: how much of the stream to keep at most.
    """

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0
        self._max_bytes = max_bytes
        self._pending = b""
        self.first_token_at: float | None = None
        self.overflow = False

    def feed(self, data: bytes, now: float) -> None:
        """Bytes as they arrived at ``now``.

        ``first_token_at`` is set by the chunk that completes the event with the first text. What exceeds
        ``max_bytes`` is dropped and makes the answer an error.
        """
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self.overflow = True
            return
        self._parts.append(data)
        if self.first_token_at is None:
            *lines, self._pending = (self._pending + data).split(b"\n")
            if any(_has_text(_event(line)) for line in lines):
                self.first_token_at = now
                self._pending = b""

    def finish(self) -> StreamedAnswer:
        """Read everything that came, once the stream has ended."""
        texts, events, usage, error, ended = [], 0, None, "", False
        for line in b"".join(self._parts).split(b"\n"):
            if line.startswith(b"data:") and line[5:].strip() == b"[DONE]":
                ended = True
                continue
            event = _event(line)
            if event is None:
                continue
            if isinstance(event, str):
                error = error or event
                continue
            texts.append(_text(event))
            events += _has_text(event)
            if event.usage is not None:
                usage = event.usage
            if bytes(event.error) not in (b"", b"null"):
                error = error or bytes(event.error).decode(errors="replace")[:500]
            ended = ended or any(choice.finish_reason for choice in event.choices)
        if self.overflow:
            error = error or f"the answer is longer than {self._max_bytes} bytes"
        elif not ended:
            error = error or "the stream stopped before its end"
        details = usage.prompt_tokens_details if usage else None
        return StreamedAnswer(
            content="".join(texts),
            content_events=events,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
            error=error,
        )


def _event(line: bytes) -> _Event | str | None:
    """The event of a data line, words about why it cannot be read, None for any other line."""
    if not line.startswith(b"data:"):
        return None
    payload = line[5:].strip()
    if not payload or payload == b"[DONE]":
        return None
    try:
        return _DECODER.decode(payload)
    except DAMAGED as error:
        return f"unreadable event: {error}"


def _text(event: _Event) -> str:
    return "".join((c.delta.content or "" if c.delta else "") + (c.text or "") for c in event.choices)


def _has_text(event: _Event | str | None) -> bool:
    if event is None or isinstance(event, str):
        return False
    thought = any(c.delta and (c.delta.reasoning_content or c.delta.reasoning) for c in event.choices)
    return thought or bool(_text(event))
