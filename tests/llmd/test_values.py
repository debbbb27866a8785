"""Go's values on command lines (llm-d's flags, sections 'flags' and 'ports' of docs/llm-d.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.llmd import flags

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (flags.duration_s, "50ms", 0.05),
        (flags.duration_s, "1m30s", 90.0),
        (flags.duration_s, "0", 0.0),
        (flags.quantity_bytes, "25MB", 25_000_000),
        (flags.quantity_bytes, "16Mi", 16 << 20),
        (flags.truth, "T", True),
        (flags.truth, "False", False),
    ],
)
def test_values(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (flags.duration_s, "-5s"),
        (flags.quantity_bytes, "0"),
        (flags.quantity_bytes, "25 M"),
        (flags.truth, "yes"),
    ],
)
def test_what_is_none_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(text)


def test_ports_in_lists_and_repeated() -> None:
    assert flags.ports(["8000, 8001", "8002"]) == [8000, 8001, 8002]
    with pytest.raises(ValueError, match="1 to 8 different ports"):
        flags.ports(["8000", "8000"])
