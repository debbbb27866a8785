r"""Lone surrogates of JSON texts, such as ``"\ud800"``: engines take them, msgspec does not.

Owns another spelling of a body, in which each is an escape of the private use area with the same last three
digits (``\ue800`` to ``\uefff``), and the way back. Python's `json` and pydantic, by which engines read
bodies, keep a lone surrogate as it is.
"""

from __future__ import annotations

import re

#: A high surrogate that no low one follows, or a low one that no high one precedes.
_LONE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_PRIVATE = re.compile(rb"\\u[eE](?=[89abcdefABCDEF])")
#: Bounds of the search, which takes up to 50 ms a megabyte; no prompt comes near either.
_MAX_BODY_BYTES = 8 * 1024 * 1024
_MAX_FOUND = 10_000


def with_private_escapes(body: bytes) -> bytes | None:
    """A body without lone surrogates, None where there are none or too many."""
    if len(body) > _MAX_BODY_BYTES:
        return None
    parts, done = [], 0
    for found, match in enumerate(_LONE.finditer(body)):
        if found >= _MAX_FOUND:
            return None
        start = before = match.start()
        while before and body[before - 1] == ord("\\"):
            before -= 1
        if (start - before) % 2 == 0:  # its backslash is none that another one escapes
            parts.append(body[done : start + 2])
            done = start + 3
    return b"e".join((*parts, body[done:])) if parts else None


def with_surrogates(body: bytes) -> bytes:
    """The way back, for a body that had no such private escapes (`has_private_escapes`) before."""
    return _PRIVATE.sub(rb"\\ud", body)


def has_private_escapes(body: bytes) -> bool:
    """Whether a body has escapes that `with_surrogates` would change."""
    return _PRIVATE.search(body) is not None
