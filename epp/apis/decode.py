"""Reading JSON bodies: typed decoding with words for the client, and what all APIs' bodies have in common.

Owns the words for bodies that do not decode, the order of session hints and the meaning of output limits.
Knows no API. Decodes only what pricing needs and lets everything else be: unknown fields are the engine's
business. Of equal keys the last counts, as engines read them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from epp.apis.body_values import MAX_BODY_NUMBERS, MAX_BODY_VALUES, MAX_LONG_DIGITS, too_many_values
from epp.apis.surrogates import with_private_escapes
from epp.errors import ClientError
from epp.types import MAX_MODEL_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Larger limits say no more than this, and stay exact in every number format that they pass through.
_MAX_LIMIT = 1 << 53
#: A whole number as engines take it (pydantic's ``int``): 512, and 512.0, as Python spells 1024 / 2.
Whole = int | float
#: What some editors write first; Python's `json.loads`, by which engines read bodies, passes over it.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "x-conversation-id",
    "x-claude-code-session-id",
)


#: What keeps prefixes apart: one for all prompts of a batch, or one for each.
Salt = str | list[str | None] | None


class StreamOptions(msgspec.Struct):
    """``stream_options`` of OpenAI's APIs and of engines that follow them."""

    include_usage: bool | None = None


class Adapter(msgspec.Struct):
    """``lora_request``: TensorRT-LLM's name for an adapter, which it takes beside ``model``."""

    lora_name: str | None = None
    lora_int_id: int | None = None


class OpenAIFields(msgspec.Struct, kw_only=True):
    """What bodies of OpenAI's APIs have in common; ``model`` is required by all of its clients.

    ``extra_key`` and ``lora_path`` are SGLang's, as are salts by prompt; ``lora_request`` is TensorRT-LLM's.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    session_id: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    cache_salt: Salt = None
    extra_key: Salt = None
    lora_path: Salt = None
    lora_request: Adapter | None = None

    def session(self, headers: Mapping[str, str], *more: object) -> str:
        """The session hint: ``session_id``, ``metadata.session_id``, what `more` the API has.

        Then ``prompt_cache_key`` (one key for many sessions that share a prefix), ``safety_identifier`` and
        ``user`` (one for all sessions of a person).
        """
        inner = self.metadata.get("session_id") if self.metadata else None
        named = (self.session_id, inner, *more)
        return session_hint(headers, (*named, self.prompt_cache_key, self.safety_identifier, self.user))

    def salt(self) -> str:
        """One salt for all that keeps prefixes apart."""
        if self.lora_request is not None:
            return joined_salt(self.cache_salt, self.extra_key, self.lora_path, self.lora_request)
        return joined_salt(self.cache_salt, self.extra_key, self.lora_path)


_T = TypeVar("_T")
_ENCODER = msgspec.json.Encoder(order="deterministic")


def joined_salt(*parts: Salt | Adapter) -> str:
    """One salt for what keeps prefixes apart: salt, extra key, adapter; empty when there is none of them."""
    if any(parts[1:]):
        return _ENCODER.encode(parts).decode()
    salt = parts[0] or ""
    return salt if isinstance(salt, str) else _ENCODER.encode(parts).decode()


def unmarked(body: bytes) -> bytes:
    """A body without the byte order mark in front."""
    return body.removeprefix(_BYTE_ORDER_MARK)


def decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """A decoder of bodies of a type.

    Numbers and truth values may be spelled as texts (``"512"``, ``"true"``), as engines read them. Where the
    type says nothing, fractions are read by Python's ``float``: msgspec's own takes thirty times as long for
    those near the greatest and refuses what is beyond, which engines read as infinity.
    """
    return msgspec.json.Decoder(kind, strict=False, float_hook=float)


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """A body as its API's type; lone surrogates in it become other private characters.

    Raises:
        ClientError: 400; `param` names the field where one can be named. Too many values are refused before
            they are decoded.
    """
    if too_many_values(body):
        bounds = f"{MAX_BODY_VALUES} texts, lists and objects, {MAX_BODY_NUMBERS} numbers"
        bounds += f", or {MAX_LONG_DIGITS} digits of long numbers"
        raise ClientError(400, f"Invalid request: more than {bounds}")
    try:
        return _decode(decoder, unmarked(body))
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


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        other = with_private_escapes(body)
        if other is None:
            raise
        return decoder.decode(other)


def _missing(problem: str) -> str | None:
    found = re.search(r"missing required field `([^`]+)`", problem)
    return found[1] if found else None


def required(value: str, name: str) -> str:
    """A name that may not be empty.

    Raises:
        ClientError: 400, it is, or is longer than `MAX_MODEL_CHARS`.
    """
    if not value:
        raise ClientError(400, f"Invalid request: '{name}' must not be empty", name)
    return optional(value, name)


def optional(value: str | None, name: str) -> str:
    """A name that may be left out, and is empty then.

    Raises:
        ClientError: 400, it is longer than `MAX_MODEL_CHARS`.
    """
    if value and len(value) > MAX_MODEL_CHARS:
        raise ClientError(
            400, f"Invalid request: '{name}' must not be longer than {MAX_MODEL_CHARS} characters", name
        )
    return value or ""


def session_hint(headers: Mapping[str, str], hints: Iterable[object]) -> str:
    """The first that is a text and not empty: of the headers, then of the body; never a request id.

    The headers are ``x-session-id``, ``x-session-affinity``, ``session-id``, ``x-conversation-id`` and
    ``x-claude-code-session-id``.
    """
    for name in _SESSION_HEADERS:
        if value := headers.get(name):
            return value
    for hint in hints:
        if isinstance(hint, str) and hint:
            return hint
    return ""


def output_limit(**limits: Whole | None) -> int | None:
    """The first limit that is given, by the body's names; a negative one is some clients' way to set none.

    Raises:
        ClientError: 400, it is no whole number.
    """
    for name, limit in limits.items():
        if limit is not None:
            if isinstance(limit, float) and not limit.is_integer():  # nor is what is infinite
                problem = f"Expected 'int | null', got 'float' at {name}"
                raise ClientError(400, f"Invalid request: {problem}", name)
            return None if limit < 0 else min(int(limit), _MAX_LIMIT)
    return None
