"""Calls of tools in the one form that engines make of all others before they render.

Engines read the arguments' text and hand templates the object (vLLM, SGLang); nothing at all is an empty one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from epp.apis.decode import decoder, has_too_many_values

_DECODE = decoder(Any).decode


def read_call(call: dict[str, Any], *, with_id: bool) -> dict[str, Any]:
    """Return a call with its arguments read, without its index, and without its id where prompts lack it.

    Args:
        call: as the chat API has it; it may be changed.
        with_id: prompts hold the ids of calls.
    """
    function = call.get("function")
    if isinstance(function, dict):
        named = {"name": function.get("name"), "arguments": _arguments(function.get("arguments"))}
        call = {"id": call.get("id"), "type": call.get("type") or "function", "function": named}
    else:
        call.pop("index", None)
    if not with_id:
        call.pop("id", None)
    return call


def _arguments(given: object) -> object:
    """Return arguments as templates get them; a text that is no JSON as it is."""
    if not isinstance(given, str):
        return given if isinstance(given, list | dict) else {}
    if has_too_many_values(given.encode()):  # those of a text were not counted with the body's
        return given
    try:
        return _DECODE(given)
    except (msgspec.DecodeError, RecursionError):
        return given if given.strip() else {}
