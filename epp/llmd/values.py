"""The values that Go programs take on their command lines and in their files, as Python values.

Pure functions from text. Each says in its error what it wants.
"""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(|[kKMGTPE]|[KMGTPE]i)B?")
_FACTOR = {"": 1, "k": 10**3, "K": 10**3} | {
    letter + suffix: base ** (power + 1)
    for power, letter in enumerate("KMGTPE")
    for suffix, base in (("", 1000), ("i", 1024))
}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def duration_s(text: str) -> float:
    """A Go duration (``50ms``, ``1m30s``, ``0``) as seconds.

    Raises:
        ValueError: it is none, or it is negative.
    """
    if text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    complete = "".join(number + unit for number, unit in parts) == text.removeprefix("+")
    if not parts or not complete or seconds == math.inf:
        raise ValueError(f"{text!r} is not a duration such as 50ms, 2s or 1m30s")
    return seconds


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity (``25M``, ``16Mi``) as bytes; a trailing ``B`` is allowed, as llm-d writes it.

    Raises:
        ValueError: it is none, or not positive.
    """
    match = _QUANTITY.fullmatch(text)
    value = float(match[1]) * _FACTOR[match[2]] if match else 0.0
    if not 1.0 <= value < math.inf:
        raise ValueError(f"{text!r} is not a size such as 25M or 16Mi")
    return int(value)


def truth(text: str) -> bool:
    """A Go boolean.

    Raises:
        ValueError: it is none.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not true or false")


def whole(text: str) -> int:
    """A whole number.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(text, 10)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def port(text: str) -> int:
    """A port number; 0 lets the system choose.

    Raises:
        ValueError: it is none.
    """
    number = whole(text)
    if not 0 <= number <= 65535:
        raise ValueError(f"{number} is not a port")
    return number


def ports(texts: list[str]) -> list[int]:
    """Ports from one or several comma lists: at most 8, each once, none 0.

    Raises:
        ValueError: they are not.
    """
    numbers = [port(piece.strip()) for text in texts for piece in text.split(",") if piece.strip()]
    if len(numbers) > 8 or len(set(numbers)) != len(numbers) or 0 in numbers:
        raise ValueError(f"{','.join(map(str, numbers))}: 1 to 8 different ports are wanted")
    return numbers
