"""What reading an answer's usage costs, counted in bytes copied and objects looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import pytest

from epp.apis import usage
from epp.apis.usage import MAX_OBJECT_BYTES, UsageReader

if TYPE_CHECKING:
    from typing import SupportsIndex


class Counted(bytes):
    """Bytes that count what is cut out of them."""

    copied = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: SupportsIndex | slice) -> int | bytes:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        piece = Counted(super().__getitem__(key))
        Counted.copied += len(piece)
        return piece


NULL = b'data: {"choices": [], "usage": null}\n\n'
FULL = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'


@pytest.mark.parametrize("event", [NULL, FULL, NULL.replace(b" ", b""), b'"usage" "meta_info" :1'])
def test_a_piece_is_walked_once_however_many_names_are_in_it(event: bytes) -> None:
    def copied(events: int) -> int:
        Counted.copied = 0
        UsageReader().feed(Counted(event * events))
        return Counted.copied

    small, large = copied(500), copied(5000)
    assert large <= 11 * small
    if b"null" in event:
        assert large < 100, "nothing but the end is kept"


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_cutting_changes_nothing(size: int) -> None:
    data = NULL * 50 + FULL + b'"usage"  :  {"prompt_tokens": 9}' + NULL * 50
    reader = UsageReader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (9, 3)


@pytest.mark.parametrize("nest", [b'"usage":{', b'"usage" : {"a":1,', b'"meta_info":{"usage":{"'])
@pytest.mark.parametrize("size", [MAX_OBJECT_BYTES, 62_000, 1 << 20])
def test_objects_that_do_not_close_are_walked_once(
    monkeypatch: pytest.MonkeyPatch, nest: bytes, size: int
) -> None:
    walked = 0
    plain = usage._object_end

    def counting(window: bytes, at: int) -> int | None:
        nonlocal walked
        walked += len(window)
        return plain(window, at)

    monkeypatch.setattr(usage, "_object_end", counting)
    data = nest * 10_000
    reader = UsageReader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    assert walked <= 2 * len(data)
    reader.feed(b" " * MAX_OBJECT_BYTES + FULL)
    assert reader.usage.prompt_tokens == 7


def test_only_values_that_are_objects_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    plain = usage._object_end

    def counting(window: bytes, at: int) -> int | None:
        looked.append(len(window))
        return plain(window, at)

    monkeypatch.setattr(usage, "_object_end", counting)
    UsageReader().feed(NULL * 1000 + FULL)
    assert len(looked) == 1
