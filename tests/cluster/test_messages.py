"""Codecs of what pickers send each other: whatever arrives is a sound message or raises the one error."""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.cluster.messages import (
    FORMAT,
    LEAST_BLOCK_TOKENS,
    MAX_BLOCKS,
    FileContent,
    Group,
    Lead,
    Message,
    decode,
    encode,
    facts_of,
)
from epp.console.page import packed, unpacked
from epp.errors import UnreadableError
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.prefix import BlockRun, Prefix
from epp.regions import summary
from epp.schedule.program_sharing import ProgramsState, ProgramState
from epp.wire import read, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024 * 1024
_FILES = msgspec.msgpack.Decoder(FileContent)
#: What MessagePack and JSON can say, NaN and huge numbers included.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)
FACTS = [*facts_of("a:1", 0.0, Prefix([BlockRun(1, 2, 2)], 2, array("Q", range(9)), 64.0))]
MESSAGE = Message(
    Group("pool", "gorgo", "key"),
    "a",
    7,
    facts=FACTS,
    lead=Lead(3, "b", 1.7e9),
    changed_s=1.7e9,
    queue={0: (1, 0.5, {"a": 9.0})},
    held={1: (1, 0.5, {"a": 9.0})},
    programs=ProgramsState(
        [ProgramState(2**64 - 1, 1, 9, "a:1", 9e4, 1e4, True, True, 0.0, 9.0, 3)], 12.0, "", {"a:1": 7.0}
    ),
)
SUMMARY = summary.Summary(
    "eu", "key", "a", 3, 1.7e9, 2, 1.0, (1.0,) * 5, (1.0, 1.0, 0.5, 1.0), (1.0,) * 4, 1.0, bytes(8)
)
CODECS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "message": (encode(MESSAGE), decode),
    "file": (
        msgspec.msgpack.encode(FileContent(MESSAGE.group, Lead(3, "b", 1.7e9), "weights", b"content")),
        lambda data: read(_FILES, data),
    ),
    "summary": (summary.encode(SUMMARY), summary.decode),
    "sketch": (summary.encode(summary.SketchContent("eu", "a", 3, b"cells")), summary.decode),
}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_whatever_is_changed_in_a_message_is_read_or_raises_the_one_error(
    name: str, data: st.DataObject
) -> None:
    good, take = CODECS[name]
    assert take(good) is not None
    spoilt = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        cut = data.draw(st.integers(0, 3))
        spoilt[at : at + cut] = data.draw(st.binary(max_size=9))
        spoilt += b"\0"
    try:
        found = take(bytes(spoilt))
    except UnreadableError:
        return
    for delta in found.facts if isinstance(found, Message) else ():
        assert len(delta.prefix().blocks) <= MAX_BLOCKS
        assert delta.block_tokens >= LEAST_BLOCK_TOKENS


@pytest.mark.parametrize("name", CODECS)
@given(values=VALUES)
def test_other_values_are_no_message(name: str, values: Any) -> None:
    _, take = CODECS[name]
    with pytest.raises(UnreadableError):
        take((b"" if name == "file" else FORMAT if name == "message" else summary.FORMAT) + _encoded(values))


def _encoded(values: Any) -> bytes:
    return msgspec.msgpack.encode({"": values})


@pytest.mark.parametrize("nested", [b"\x91" * 200_000, b"\x9d" + b"\x91" * 200_000])
def test_depth_is_no_way_in(nested: bytes) -> None:
    with pytest.raises(UnreadableError):
        decode(FORMAT + nested)
    with pytest.raises(UnreadableError):
        unpacked(zlib.compress(b'{"a":' * 200_000))


@pytest.mark.parametrize(
    "changes", [b"odd", (2**32 - 1).to_bytes(4, "little"), bytes(4 * summary.MAX_CHANGES + 4)]
)
def test_changes_beyond_a_sketch_are_none(changes: bytes) -> None:
    told = msgspec.to_builtins(SUMMARY)
    with pytest.raises(UnreadableError):
        summary.decode(summary.FORMAT + msgspec.msgpack.encode([*told[:-1], changes]))


FRAME = {
    "id": "a",
    "at": 1.0,
    "leads": False,
    "policy": "policy gorgo",
    "unit": "tokens, weighted",
    "fleet": [],
    "decisions": [],
    "past": {"closed": 1.0, "seconds": (10.0, 10.0), "rows": []},
    "failures": [("chat", "a:1", "status 500", "d-1", 1.0, 1)],
    "weights": [],
    "words": [],
    "queue": [(1, "tenant", "a:1", 2, 0.5)],
}


def test_a_frame_is_read_as_it_was_packed() -> None:
    assert unpacked(packed(FRAME)) == FRAME


@pytest.mark.parametrize("key", FRAME)
def test_a_frame_without_a_key_is_none(key: str) -> None:
    with pytest.raises(UnreadableError):
        unpacked(packed({name: value for name, value in FRAME.items() if name != key}))


@given(st.dictionaries(st.sampled_from([*FRAME, "opinion", "error", "sums", "live", "other"]), VALUES))
def test_frames_and_opinions_are_whole_or_none(found: dict[str, Any]) -> None:
    try:
        data = packed(found)
    except (TypeError, OverflowError):
        return
    try:
        told = unpacked(data)
    except UnreadableError:
        return
    assert told.keys() in (
        FRAME.keys(),
        {"id", "opinion", "error"},
        {"id", "opinion", "sums", "live", "other"},
    )


def test_a_bomb_of_zlib_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(64 * MIB), 9)
    assert len(bomb) < MIB
    with pytest.raises(UnreadableError):
        unpacked(bomb)
    for cut in (bomb[:-9], b"", b"nonsense"):
        with pytest.raises(UnreadableError):
            unpack(cut, 128 * MIB)
    assert unpack(zlib.compress(b"exact"), 5) == b"exact"
    with pytest.raises(UnreadableError):
        unpack(zlib.compress(b"exact"), 4)


_HASHES = st.lists(st.integers(0, 15), max_size=10)
_PREFIXES = st.builds(
    lambda known, blocks, start: Prefix(
        [BlockRun(*run) for run in known],
        sum(run[2] for run in known) if start is None else start,
        array("Q", blocks),
        64.0,
    ),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 4)), max_size=3),
    _HASHES,
    st.none() | st.integers(0, 9),
)


@given(st.lists(st.tuples(st.integers(0, 2), _PREFIXES), max_size=60))
def test_hashes_that_are_no_chain_leave_an_index_that_works(told: list[tuple[int, Prefix]]) -> None:
    index = PrefixIndex(capacity_tokens=1500)
    for slot, prefix in told:
        index.apply_remote(slot, prefix)
        index.whole(prefix)
        assert index.tokens(slot) <= 1500
    for slot in range(3):
        copy = PrefixIndex(capacity_tokens=1500)
        for prefix in index.prefixes(slot):
            copy.apply_remote(slot, prefix)
