"""How many values a body of JSON is made of, counted before it is decoded.

Owns the bounds. A text, a list or an object costs a decoder, and whoever walks what it gave, fifty times what
the two or three bytes cost that can spell it: a body of the greatest length made of nothing else would hold
the event loop for seconds. Numbers, true, false and null are cheaper, and prompts of token ids have millions;
but reading one takes time that grows with the square of its digits.
At a bound the loop is held for 0.2 to 0.5 s; a thread would not help, as a decoder keeps the interpreter's
lock. Nothing is decoded here, and what is no JSON may be counted wrong: it is refused as such afterwards.
"""

from __future__ import annotations

#: Texts (names of members are some), lists and objects of one body. In a prompt each is a token or more, in
#: tools and calls several; no engine has a context for so many.
MAX_BODY_VALUES = 600_000
#: Values of any kind of one body, told by the commas between them. Token ids of the longest prompts, several
#: at once, are fewer: of five digits and a comma so many are 24 MB.
MAX_BODY_NUMBERS = 4_000_000
#: Digits of one body in numbers of about a thousand digits or more. Nobody means such a number.
MAX_LONG_DIGITS = 1 << 20
#: A number of twice as many digits has so many in a row from one multiple of this on.
_RUN_DIGITS = 512
_MARKS = (b"{", b"[", b'"')
#: Looked through at a time: it stays in the processor's cache, and its copies need no new memory.
_WINDOW_BYTES = 1 << 18


def too_many_values(body: bytes) -> bool:
    """Whether a body has more than `MAX_BODY_VALUES` of them, or more than `MAX_BODY_NUMBERS` of any kind.

    Or more than `MAX_LONG_DIGITS`.
    """
    # Of the first each takes a byte at its begin and one at its end. Mostly there are not so many marks in
    # all: then nobody asks which are inside of texts.
    many = len(body) > 2 * MAX_BODY_VALUES and _exceeds(body, _MARKS, MAX_BODY_VALUES)
    many = many or (len(body) > 2 * MAX_BODY_NUMBERS and body.count(b",") > MAX_BODY_NUMBERS)
    many = many or _has_long_numbers(body)
    return many and _values_exceed(body)


def _values_exceed(body: bytes) -> bool:
    if b"\\" in body:  # what is left of quotes then begins or ends a text
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = body.count(b'"') // 2
    if texts > MAX_BODY_VALUES:
        return True
    if not _has_too_many(body, MAX_BODY_VALUES - texts):
        return False  # not even with what is inside of texts
    between_texts = b"".join(body.split(b'"')[::2])
    return _has_too_many(between_texts, MAX_BODY_VALUES - texts)


def _has_too_many(data: bytes, most_lists: int) -> bool:
    """Whether data has more than so many lists and objects, or too many or too long numbers."""
    return (
        data.count(b",") > MAX_BODY_NUMBERS
        or _exceeds(data, (b"{", b"["), most_lists)
        or _has_long_numbers(data)
    )


def _has_long_numbers(data: bytes) -> bool:
    """Whether more than `MAX_LONG_DIGITS` are in runs between multiples of `_RUN_DIGITS`."""
    found = 0
    for start in range(0, len(data) if len(data) > MAX_LONG_DIGITS else 0, _RUN_DIGITS):
        if data[start : start + _RUN_DIGITS].isdigit():  # mostly the first byte tells
            found += _RUN_DIGITS
            if found > MAX_LONG_DIGITS:
                return True
    return False


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
