"""How many values a body of JSON is made of, counted before it is decoded.

Owns the bound. A text, a list or an object costs a decoder, and whoever walks what it gave, fifty times what
the two or three bytes cost that can spell it: a body of the greatest length made of nothing else would hold
the event loop for seconds. Numbers, true, false and null are cheap enough to be as many as fit. Nothing is
decoded here, and what is no JSON may be counted wrong: it is refused as such afterwards.
"""

from __future__ import annotations

#: Texts (names of members are some), lists and objects of one body. In a prompt each is a token or more, in
#: tools and calls several; no engine has a context for so many.
MAX_BODY_VALUES = 1_000_000
_MARKS = (b"{", b"[", b'"')
#: Looked through at a time: it stays in the processor's cache, and its copies need no new memory.
_WINDOW_BYTES = 1 << 18


def too_many_values(body: bytes) -> bool:
    """Whether a body has more than `MAX_BODY_VALUES` of them."""
    # Each takes a byte at its begin and one at its end.
    return (
        len(body) > 2 * MAX_BODY_VALUES
        and _exceeds(body, _MARKS, MAX_BODY_VALUES)  # mostly not: then nobody asks what is inside of texts
        and _values_exceed(body)
    )


def _values_exceed(body: bytes) -> bool:
    if b"\\" in body:  # what is left of quotes then begins or ends a text
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = body.count(b'"') // 2
    if texts > MAX_BODY_VALUES:
        return True
    between_texts = b"".join(body.split(b'"')[::2])
    return _exceeds(between_texts, (b"{", b"["), MAX_BODY_VALUES - texts)


def _exceeds(data: bytes, marks: tuple[bytes, ...], most: int) -> bool:
    """Whether more than ``most`` of the bytes are among the marks."""
    found = 0
    for start in range(0, len(data), _WINDOW_BYTES):
        window = data[start : start + _WINDOW_BYTES]
        for mark in marks:  # replacing looks for the next by wide instructions, counting looks at each byte
            found += len(window) - len(window.replace(mark, b""))
        if found > most:
            return True
    return False
