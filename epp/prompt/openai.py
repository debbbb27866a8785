"""OpenAI chat completions and completions: bodies to canonical form, errors in OpenAI's words.

Decodes only what pricing needs and lets everything else be: unknown fields are the engine's business. What a
template puts before the messages (the template itself, documents, tools) comes before them in the canonical
bytes, then the messages in order; `epp.prompt.canonical` has the framing. Fields that only shape the answer
(``tool_choice``, ``response_format``, ``reasoning_effort``, ``chat_template_kwargs``) are not part of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from epp.errors import ClientError
from epp.prompt.canonical import Frames, frame_token_ids
from epp.prompt.types import ParsedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id", "x-conversation-id")
#: Parts that are text, and the field that holds it; whatever else a part may be, it is media.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
#: Larger limits say no more than this, and stay exact in every number format that they pass through.
_MAX_LIMIT = 1 << 53


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
    session_id: Any = None
    prompt_cache_key: Any = None
    cache_salt: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: dict[str, Any] | None = None


class _Chat(_Common, kw_only=True):
    messages: list[_Message]
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None


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
    """The session hint: the first of these that is a text and not empty; never a request id.

    The headers ``x-session-id``, ``x-session-affinity``, ``session-id``, ``x-conversation-id``; then in the
    body ``session_id``, ``metadata.session_id``, ``prompt_cache_key`` (one key for many sessions that share a
    prefix), ``user`` (one for all sessions of a person).
    """
    for name in _SESSION_HEADERS:
        if value := headers.get(name):
            return value
    metadata = body.metadata or {}
    hints = (body.session_id, metadata.get("session_id"), body.prompt_cache_key, body.user)
    return next((hint for hint in hints if isinstance(hint, str) and hint), "")


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        parsed = decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$").removeprefix(".") or _missing(problem)
        raise ClientError(
            400, f"Invalid request: {problem.replace('`', chr(39))}" + (f" at {param}" if path else ""), param
        ) from None
    except RecursionError:
        raise ClientError(400, "The body is not valid JSON for this API: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
        # a negative limit is some clients' way to set none
        max_output_tokens=None if limit is None or limit < 0 else min(limit, _MAX_LIMIT),
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
        try:
            if chat.chat_template:
                framed.add_text(b"H", chat.chat_template)
            for document in chat.documents or ():
                framed.add_json(b"D", document)
            for tool in (*(chat.tools or ()), *(chat.functions or ())):
                framed.add_json(b"T", tool)
            for message in chat.messages:
                _add_message(framed, message)
        except ValueError as error:
            raise ClientError(400, f"Invalid request: {error}") from None
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
        given = completion.prompt
        if not given and not isinstance(given, str):
            raise ClientError(400, "Invalid request: 'prompt' must not be empty", "prompt")
        return _canonical_request(self.name, completion, _framed_prompts(given), headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


def _framed_prompts(given: str | list[str | int | list[int]]) -> bytes:
    """A text, texts, token ids or lists of token ids, but no mixture."""
    prompts: list[str | int | list[int]] = given if isinstance(given, list) else [given]
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    ids = [prompt for prompt in prompts if isinstance(prompt, int)]
    lists = [prompt for prompt in prompts if isinstance(prompt, list)]
    if len(texts) == len(prompts):
        framed = Frames()
        for text in texts:
            framed.add_text(b"P", text)
        return framed.bytes()
    if len(prompts) not in (len(ids), len(lists)):
        raise ClientError(400, "Invalid request: 'prompt' mixes text and token ids", "prompt")
    try:
        return frame_token_ids([ids] if ids else lists)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "prompt") from None


def _add_message(framed: Frames, message: _Message) -> None:
    framed.add_text(b"R", message.role)
    if message.name:
        framed.add_text(b"N", message.name)
    if reasoning := message.reasoning_content or message.reasoning:
        framed.add_text(b"G", reasoning)
    content = message.content
    for part in [content] if isinstance(content, str) else content or ():
        _add_part(framed, part)
    if message.tool_call_id:
        framed.add_text(b"I", message.tool_call_id)
    for call in message.tool_calls or ():
        framed.add_json(b"K", call)
    if message.function_call:
        framed.add_json(b"F", message.function_call)
    if message.refusal:
        framed.add_text(b"X", message.refusal)
    if message.audio:
        framed.add_media(message.audio)


def _add_part(framed: Frames, part: str | dict[str, Any]) -> None:
    if isinstance(part, str):
        framed.add_text(b"C", part)
        return
    field = _TEXT_PARTS.get(kind) if isinstance(kind := part.get("type", "text"), str) else None
    text = part.get(field) if field else None
    if isinstance(text, str):
        framed.add_text(b"C" if field == "text" else b"X" if field == "refusal" else b"G", text)
    else:
        framed.add_media(part)
