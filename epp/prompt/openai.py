"""OpenAI chat completions and completions: bodies to canonical form, errors in OpenAI's words.

Decodes only what pricing needs and lets everything else be: unknown fields are the engine's business.
Framing of the canonical bytes: each part is a mark that is not UTF-8, a tag, and the content, so that no text
can pass for structure. The parts come in order, so that a longer conversation starts with the bytes of the
shorter.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from epp.errors import ClientError
from epp.prompt.types import ParsedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id", "x-conversation-id")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    cache_salt: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None


class _Chat(_Common, kw_only=True):
    messages: list[_Message]
    tools: list[Any] | None = None
    functions: list[Any] | None = None


class _Completion(_Common, kw_only=True):
    prompt: str | list[str | int | list[int]]


_T = TypeVar("_T", bound=_Common)
_CHAT = msgspec.json.Decoder(_Chat)
_COMPLETION = msgspec.json.Decoder(_Completion)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def openai_error(status: int, message: str, param: str | None = None) -> bytes:
    """An error body as OpenAI's clients expect it."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return _ENCODER.encode({"error": {"message": message, "type": kind, "param": param, "code": None}})


def session_of(headers: Mapping[str, str], body: _Common) -> str:
    """The session hint: a session header, else ``metadata.session_id``, else ``user``; never a request id."""
    for name in _SESSION_HEADERS:
        if value := headers.get(name):
            return value
    found = body.metadata.get("session_id") if body.metadata else None
    return found if isinstance(found, str) and found else body.user or ""


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        parsed = decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$").removeprefix(".") or _missing(problem)
        raise ClientError(
            400, f"Invalid request: {problem.replace('`', chr(39))}" + (f" at {param}" if path else ""), param
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(400, f"The body is not valid JSON: {error}") from None
    if not parsed.model:
        raise ClientError(400, "Invalid request: 'model' must not be empty", "model")
    return parsed


def _missing(problem: str) -> str | None:
    found = re.search(r"missing required field `([^`]+)`", problem)
    return found[1] if found else None


def _canonical_request(
    api: str, body: _Common, canonical: bytes, headers: Mapping[str, str]
) -> ParsedRequest:
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return ParsedRequest(
        api=api,
        model=body.model,
        canonical=canonical,
        stream=bool(body.stream),
        max_output_tokens=max(0, limit) if limit is not None else None,
        session=session_of(headers, body),
        cache_salt=body.cache_salt or "",
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


class ChatParser:
    """``/v1/chat/completions``."""

    name = "openai-chat"
    paths = ("/v1/chat/completions",)

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """A chat to canonical form: tools first, where templates put them, then the messages.

        Raises:
            ClientError: 400 in OpenAI's words.
        """
        chat = _decode(_CHAT, body)
        if not chat.messages:
            raise ClientError(400, "Invalid request: 'messages' must not be empty", "messages")
        framed = Frames()
        for tool in (*(chat.tools or ()), *(chat.functions or ())):
            framed.add_json(b"T", tool)
        for message in chat.messages:
            _add_message(framed, message)
        return _canonical_request(self.name, chat, framed.bytes(), headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


class CompletionParser:
    """``/v1/completions``."""

    name = "openai-completions"
    paths = ("/v1/completions",)

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """A completion to canonical form: text as its bytes, token ids as four bytes each.

        Raises:
            ClientError: 400 in OpenAI's words.
        """
        completion = _decode(_COMPLETION, body)
        framed = Frames()
        given = completion.prompt
        prompts: list[str | int | list[int]] = given if isinstance(given, list) else [given]
        if not prompts:
            raise ClientError(400, "Invalid request: 'prompt' must not be empty", "prompt")
        if all(isinstance(prompt, int) for prompt in prompts):
            prompts = [[prompt for prompt in prompts if isinstance(prompt, int)]]  # one prompt as token ids
        for prompt in prompts:
            if isinstance(prompt, str):
                framed.add_text(b"P", prompt)
            elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
                framed.add_tokens(prompt)
            else:
                raise ClientError(400, "Invalid request: 'prompt' mixes text and token ids", "prompt")
        return _canonical_request(self.name, completion, framed.bytes(), headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


class Frames:
    """Builds canonical bytes: content, then an end mark that content cannot hold (0xFF is not UTF-8)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add_text(self, tag: bytes, text: str) -> None:
        """A piece of text; unpaired surrogates, which JSON can spell, become question marks."""
        self._parts += (b"\xff", tag, text.encode("utf-8", "replace"))

    def add_json(self, tag: bytes, value: object) -> None:
        """A structured value in one spelling."""
        try:
            self._parts += (b"\xff", tag, _ENCODER.encode(value))
        except (ValueError, RecursionError) as error:
            raise ClientError(400, f"Invalid request: {error}") from None

    def add_tokens(self, tokens: list[int]) -> None:
        """Token ids, each in four bytes; the tag says that what follows is not text.

        Raises:
            ClientError: an id that is no 32-bit number.
        """
        try:
            self._parts += (b"\xffI", struct.pack(f"<{len(tokens)}I", *tokens))
        except struct.error:
            raise ClientError(
                400, "Invalid request: token ids must be from 0 to 4294967295", "prompt"
            ) from None

    def bytes(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)


def _add_message(framed: Frames, message: _Message) -> None:
    framed.add_text(b"R", message.role)
    if message.name:
        framed.add_text(b"N", message.name)
    content = message.content
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, str):
            framed.add_text(b"C", part)
        elif isinstance(text := part.get("text"), str):
            framed.add_text(b"C", text)
        else:  # an image, audio or file part: only its identity matters, not its megabytes
            digest = hashlib.blake2b(_ENCODER.encode(part), digest_size=32).hexdigest()
            framed.add_text(b"M", digest)
    if message.tool_call_id:
        framed.add_text(b"I", message.tool_call_id)
    for call in message.tool_calls or ():
        framed.add_json(b"K", call)
    if message.function_call:
        framed.add_json(b"K", message.function_call)
    if message.refusal:
        framed.add_text(b"C", message.refusal)
