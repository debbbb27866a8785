"""Answers in the OpenAI wire formats, streamed as vLLM streams them and whole.

Pure bytes. A streamed chat begins with a role chunk, sends one chunk per token, the last of which carries the
finish reason, then the usage chunk if asked for, then ``[DONE]``. Static parts are encoded once per request:
a chunk costs one join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; ``cached_tokens`` None where the engine does not report it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    def as_dict(self) -> dict[str, Any]:
        """The ``usage`` object."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


class Frames:
    """Encodes one answer."""

    __slots__ = ("_chat", "_head", "_id", "_tail_stop", "_tail_token")

    def __init__(self, request_id: str, created_s: int, model: str, *, chat: bool) -> None:
        self._chat = chat
        kind = "chat.completion" if chat else "text_completion"
        self._id = {"id": request_id, "object": kind, "created": created_s, "model": model}
        envelope = dict(self._id, object="chat.completion.chunk" if chat else kind)
        self._head = b"data: " + msgspec.json.encode(envelope)[:-1]
        self._tail_token = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        if not chat:
            self._tail_token = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._tail_stop = self._tail_token.replace(b'"finish_reason":null', b'"finish_reason":"%s"')

    def role(self) -> bytes:
        """What precedes the first token; empty for completions."""
        if not self._chat:
            return b""
        return (
            self._head + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""' + self._tail_token
        )

    def token(self, word: str, finish_reason: str | None = None) -> bytes:
        """One token; the last one names the finish reason. ``word`` needs no JSON escapes."""
        opening = (
            b',"choices":[{"index":0,"delta":{"content":"'
            if self._chat
            else b',"choices":[{"index":0,"text":"'
        )
        tail = self._tail_token if finish_reason is None else self._tail_stop % finish_reason.encode()
        return b"".join((self._head, opening, word.encode(), b'"', tail))

    def usage(self, usage: Usage) -> bytes:
        """The chunk that follows the last token when the client asked for usage."""
        return self._head + b',"choices":[],"usage":' + msgspec.json.encode(usage.as_dict()) + b"}\n\n"

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return msgspec.json.encode({**self._id, "choices": [choice], "usage": usage.as_dict()})


_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI clients expect it."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
