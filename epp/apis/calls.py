"""Calls of tools in the one spelling that engines make of all others before they render.

Engines read the arguments' text and hand templates the object (vLLM, SGLang); nothing at all is an empty one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from epp.apis.decode import MAX_BODY_VALUES, decoder, has_too_many_values

_DECODE = decoder(Any).decode


def plain_call(call: dict[str, Any], *, with_id: bool) -> dict[str, Any]:
    """Return a call without its index, and without its id where prompts lack it."""
    function = call.get("function")
    if isinstance(function, dict):
        plain = {"type": call.get("type") or "function", "function": plain_function(function)}
        return {"id": call.get("id"), **plain} if with_id else plain
    left_out = ("index",) if with_id else ("id", "index")
    return {name: value for name, value in call.items() if name not in left_out}


def plain_function(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function's name and its arguments."""
    return {"name": function.get("name"), "arguments": _arguments(function.get("arguments"))}


def _arguments(given: object) -> object:
    """Return arguments as templates get them; a text that is no JSON as it is."""
    if isinstance(given, str):
        # Its values were not counted with the body's.
        if len(given) > MAX_BODY_VALUES and has_too_many_values(given.encode("utf-8", "replace")):
            return given
        try:
            return _DECODE(given)
        except (msgspec.DecodeError, RecursionError):
            return given if given.strip() else {}
    return given if isinstance(given, list | dict) else {}
