r"""Lone surrogates of JSON texts, such as ``"\ud800"``: engines take them, msgspec does not.

Owns another spelling of a body, in which each is an escape of the private use area with the same last three
digits (``\ue800`` to ``\uefff``), and the way back. Python's `json` and pydantic, by which engines read
bodies, keep a lone surrogate as it is.
"""

from __future__ import annotations

import re

#: From the begin of a character or escape through the ``\u`` of the next lone surrogate: no half of a
#: pair. Whole escapes are passed over, so that an escaped backslash is not taken for the begin of one.
_TO_LONE = re.compile(
    rb"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+\\u(?=[dD])", re.DOTALL
)
_PRIVATE = re.compile(rb"\\u[eE](?=[89abcdefABCDEF])")
#: Bounds of the search, which takes up to 15 ms a megabyte; no prompt comes near either.
_MAX_BODY_BYTES = 8 * 1024 * 1024
_MAX_FOUND = 10_000


def with_private_escapes(body: bytes) -> bytes | None:
    """A body without lone surrogates, None where there are none or too many."""
    if len(body) > _MAX_BODY_BYTES:
        return None
    parts, done = list[bytes](), 0
    while found := _TO_LONE.match(body, done):
        if len(parts) >= _MAX_FOUND:
            return None
        parts.append(body[done : found.end()])
        done = found.end() + 1
    return b"e".join((*parts, body[done:])) if parts else None


def with_surrogates(body: bytes) -> bytes:
    """The way back, for a body that had no such private escapes (`has_private_escapes`) before."""
    return _PRIVATE.sub(rb"\\ud", body)


def has_private_escapes(body: bytes) -> bool:
    """Whether a body has escapes that `with_surrogates` would change."""
    return _PRIVATE.search(body) is not None
