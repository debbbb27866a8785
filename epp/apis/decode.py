"""Reading JSON bodies: typed decoding with words for the client.

Owns the words for bodies that do not decode and the meaning of output limits. Knows no API. Decodes only what
pricing needs; unknown fields are the engine's business. Of equal keys the last counts, as engines read them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Collection

#: Larger limits say no more than this, and stay exact in every number format that they pass through.
_MAX_LIMIT = 1 << 53
#: A whole number as engines take it (pydantic's ``int``): 512, and 512.0, as Python spells 1024 / 2.
Whole = int | float
#: Some editors write it first; Python's `json.loads`, by which engines read bodies, passes over it.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Texts (names of members are some), lists and objects of one body; no engine has a context for so many. Each
#: costs a decoder fifty times what the two bytes cost that can spell it, while the event loop waits.
MAX_BODY_VALUES = 600_000
#: Values of any kind, by the commas between them; the token ids of the longest prompts are fewer.
MAX_BODY_NUMBERS = 4_000_000
_T = TypeVar("_T")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MEMBER = re.compile(r"`\$\.(\w+)")


def invalid(problem: str, param: str | None = None) -> ClientError:
    """Return the 400 for a body that its API does not accept."""
    return ClientError(400, f"Invalid request: {problem}", param)


def unmarked(body: bytes) -> bytes:
    """Return a body without the byte order mark in front."""
    return body.removeprefix(_BYTE_ORDER_MARK)


def decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """Return a decoder of bodies of a type.

    Numbers and truth values may be spelled as texts (``"512"``, ``"true"``), as engines read them. Where the
    type says nothing, fractions are read by Python's ``float``: msgspec's own takes thirty times as long for
    those near the greatest and refuses what is beyond, which engines read as infinity.
    """
    return msgspec.json.Decoder(kind, strict=False, float_hook=float)


def has_too_many_values(body: bytes) -> bool:
    """Return whether a body has more than `MAX_BODY_VALUES`, or more than `MAX_BODY_NUMBERS` of any kind."""
    if len(body) <= 2 * MAX_BODY_VALUES or not _exceeds(body, body.count(b'"') // 2):
        return False
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of quotes begins or ends a text
    texts = body.count(b'"') // 2
    return texts > MAX_BODY_VALUES or _exceeds(b"".join(body.split(b'"')[::2]), texts)


def _exceeds(data: bytes, texts: int) -> bool:
    values = texts + data.count(b"{") + data.count(b"[")
    return values > MAX_BODY_VALUES or data.count(b",") > MAX_BODY_NUMBERS


def decode(decoder: msgspec.json.Decoder[_T], body: bytes, optional: Collection[str] = ()) -> _T:
    """Decode a body as its API's type.

    Args:
        decoder: of the type.
        body: the body.
        optional: members that are left out where their type is another.

    Raises:
        ClientError: 400; `param` names the field where one can be named.
    """
    if has_too_many_values(body):
        raise invalid(f"more than {MAX_BODY_VALUES} texts, lists and objects, or {MAX_BODY_NUMBERS} numbers")
    try:
        return _decode(decoder, unmarked(body), optional)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        missing = re.search(r"missing required field `([^`]+)`", problem)
        param = path.strip("`").removeprefix("$").removeprefix(".") or (missing[1] if missing else None)
        raise invalid(problem.replace("`", "'") + (f" at {param}" if path else ""), param) from None
    except RecursionError:
        raise ClientError(400, "The body is not valid JSON for this API: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(400, f"The body is not valid JSON: {error}") from None


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes, optional: Collection[str] = ()) -> _T:
    r"""Decode a body, lone surrogates in it (``"\ud800"``) as question marks, ``NaN`` and infinities as null.

    Python's `json`, by which engines read bodies, takes them; msgspec does not.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        name = _MEMBER.match(str(error).partition(" - at ")[2])
        if name is None or name[1] not in optional:
            raise
        members = _decode(_MEMBERS, body)
        del members[name[1]]
        body = msgspec.json.encode(members)
    except msgspec.DecodeError as error:
        try:
            value = json.loads(body, parse_constant=lambda _: None)
        except ValueError:
            raise error from None
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return _decode(decoder, body, optional)


def output_limit(**limits: Whole | None) -> int | None:
    """Return the first limit that is given, by the body's names; some clients set none by a negative one.

    Raises:
        ClientError: 400, it is no whole number.
    """
    for name, limit in limits.items():
        if limit is not None:
            if isinstance(limit, float) and not limit.is_integer():  # nor is what is infinite
                raise invalid(f"Expected 'int | null', got 'float' at {name}", name)
            return None if limit < 0 else min(int(limit), _MAX_LIMIT)
    return None
