"""The few members of a request body that the picker may set; every other value keeps its bytes.

Owns the splice: a body is cut into its top-level members, each an untouched run of bytes, and put together
again with some of them replaced. Knows no API and no endpoint. Rules:

* Of a member that is there twice the last one holds, as in every decoder that engines use, and only that one
  goes on: no two readers can then see different values.
* A name may be written with escapes; it is compared and written on as what it means.
* White space between top-level members is not kept.
"""

from __future__ import annotations

import msgspec

from epp.apis.decode import unmarked
from epp.apis.surrogates import has_private_escapes, with_private_escapes, with_surrogates
from epp.errors import ClientError

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODE = msgspec.json.Encoder().encode
_NULL = b"null"
_INCLUDE_USAGE = "include_usage"
_STREAM_OPTIONS = "stream_options"


def rewrite(body: bytes, *, model: str | None = None, include_usage: bool = False) -> bytes:
    """A JSON object with another ``model``, or with ``stream_options.include_usage`` set.

    Args:
        body: the object, in UTF-8.
        model: the model's name in the new body, None to leave it.
        include_usage: ask for ``usage`` in an event stream where the client says nothing on it; an explicit
            ``false`` stays.

    Raises:
        ClientError: 400, the body is not a JSON object.
    """
    body = unmarked(body)
    try:
        try:
            return _spliced(body, model, include_usage=include_usage)
        except msgspec.DecodeError:
            other = with_private_escapes(body)
            if other is None or has_private_escapes(body):
                raise
            return with_surrogates(_spliced(other, model, include_usage=include_usage))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ClientError(400, f"The body is not valid JSON: {error}") from None


def _spliced(body: bytes, model: str | None, *, include_usage: bool) -> bytes:
    members = _MEMBERS.decode(body)
    if model is not None:
        members["model"] = msgspec.Raw(_ENCODE(model))
    if include_usage:
        _ask_for_usage(members)
    return _ENCODE(members)


def _ask_for_usage(members: dict[str, msgspec.Raw]) -> None:
    given = members.get(_STREAM_OPTIONS)
    options = {} if given is None or bytes(given).strip() == _NULL else _MEMBERS.decode(given)
    said = options.get(_INCLUDE_USAGE)
    if said is None or bytes(said).strip() == _NULL:
        options[_INCLUDE_USAGE] = msgspec.Raw(b"true")
        members[_STREAM_OPTIONS] = msgspec.Raw(_ENCODE(options))
