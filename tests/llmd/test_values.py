"""Go's values on command lines (llm-d's flags, sections 'flags' and 'ports' of docs/llm-d.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.llmd import values

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.duration_s, "50ms", 0.05),
        (values.duration_s, "1m30s", 90.0),
        (values.duration_s, "0", 0.0),
        (values.quantity_bytes, "25MB", 25_000_000),
        (values.quantity_bytes, "16Mi", 16 << 20),
        (values.truth, "T", True),
        (values.truth, "False", False),
    ],
)
def test_values(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.duration_s, "-5s"),
        (values.quantity_bytes, "0"),
        (values.quantity_bytes, "25 M"),
        (values.truth, "yes"),
    ],
)
def test_what_is_none_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(text)


def test_ports_in_lists_and_repeated() -> None:
    assert values.ports(["8000, 8001", "8002"]) == [8000, 8001, 8002]
    with pytest.raises(ValueError, match="1 to 8 different ports"):
        values.ports(["8000", "8000"])
