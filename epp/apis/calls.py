"""Calls of tools in the one spelling that engines make of all others before they render.

Engines read the arguments' text and hand templates the object (vLLM, SGLang); nothing at all is an empty one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from epp.apis.canonical import spell
from epp.apis.decode import decoder, has_too_many_values

_DECODE = decoder(Any).decode


def spelled_call(call: dict[str, Any], *, with_id: bool) -> bytes:
    """Return a call as JSON, without its index, and without its id where prompts lack it.

    Raises:
        ClientError: 400, it is nested too deeply.
    """
    function = call.get("function")
    if isinstance(function, dict):
        head = b'{"id":%b,' % spell(call.get("id")) if with_id else b"{"
        kind = spell(call.get("type") or "function")
        return b'%b"type":%b,"function":%b}' % (head, kind, spelled_function(function))
    left_out = ("index",) if with_id else ("id", "index")
    return spell({name: value for name, value in call.items() if name not in left_out})


def spelled_function(function: dict[str, Any]) -> bytes:
    """Return a function's name and its arguments as JSON.

    Raises:
        ClientError: 400, they are nested too deeply.
    """
    name, arguments = spell(function.get("name")), _arguments(function.get("arguments"))
    return b'{"name":%b,"arguments":%b}' % (name, arguments)


def _arguments(given: object) -> bytes:
    """Return arguments as templates get them; a text that is no JSON as it is."""
    if isinstance(given, str):
        data = given.encode("utf-8", "replace")
        if not has_too_many_values(data):  # those of a text were not counted with the body's
            try:
                return spell(_DECODE(data))
            except (msgspec.DecodeError, RecursionError):
                given = given if given.strip() else {}
    return spell(given) if isinstance(given, list | dict | str) else b"{}"
