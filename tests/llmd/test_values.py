"""Go's values on command lines (llm-d's flags, sections 'flags' and 'ports' of docs/llm-d.md)."""

from __future__ import annotations

import pytest

from epp.llmd import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("0", 0.0),
        ("250us", 0.00025),
        ("+5s", 5.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5 s", "-5s", "s", "5sec", "1s2", "9" * 400 + "s"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        values.duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("25M", 25_000_000), ("25MB", 25_000_000), ("16Mi", 16 << 20), ("4194304", 4 << 20), ("1.5Gi", 3 << 29)],
)
def test_quantities(text: str, size: int) -> None:
    assert values.quantity_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "25 M", "M", "1e3x", "9" * 400])
def test_what_is_no_quantity_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        values.quantity_bytes(text)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_truth(text: str) -> None:
    assert values.truth(text)


def test_what_is_neither_true_nor_false_is_told() -> None:
    assert not values.truth("False")
    with pytest.raises(ValueError, match="true or false"):
        values.truth("yes")


def test_ports_in_lists_and_repeated() -> None:
    assert values.ports(["8000, 8001", "8002"]) == [8000, 8001, 8002]


@pytest.mark.parametrize("texts", [["8000", "8000"], ["0"], ["1,2,3,4,5,6,7,8,9"], ["70000"], ["x"]])
def test_wrong_ports(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"port|number"):
        values.ports(texts)
