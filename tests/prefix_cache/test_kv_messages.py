"""Messages of vLLM and SGLang, in the forms that their releases have sent."""

from __future__ import annotations

import contextlib
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import UnreadableError
from epp.prefix_cache.kv_messages import Cleared, Removed, Stored, read_batch

encode = msgspec.msgpack.encode
TOKENS = array("I", range(32)).tobytes()


def test_arrays_of_vllm_are_read() -> None:
    events = [
        ["BlockStored", [1, -1], None, list(range(32)), 16, None, "GPU", None, [["salt"], None], 1,
         "sliding_window", 128, None, "more"],
        ["BlockRemoved", [7], "CPU", 1],
        ["AllBlocksCleared"],
    ]  # fmt: skip
    batch = read_batch(encode([1.5, events, 3]))
    assert (batch.rank, batch.unread) == (3, 0)
    assert batch.events == [
        Stored([1, 2**64 - 1], None, TOKENS, 16, salt="salt", group=1, window_tokens=128),
        Removed([7], tier=1, group=1),
        Cleared(),
    ]


def test_maps_of_newer_vllm_are_read_and_long_hashes_cut() -> None:
    told = {
        "type": "BlockStored", "block_hashes": [bytes(24) + (5).to_bytes(8)], "parent_block_hash": b"\1" * 32,
        "token_ids": list(range(32)), "block_size": 32, "lora_id": 1, "medium": "STORAGE", "lora_name": "law",
        "extra_keys": [["law", ["image", 3]]], "kv_cache_spec_kind": "mamba", "session_id": "x",
    }  # fmt: skip
    (event,) = read_batch(encode({"ts": 1.5, "events": [told]})).events
    assert isinstance(event, Stored)
    assert event.hashes == [5]
    assert event.parent == int.from_bytes(b"\1" * 8)
    assert (event.lora, event.salt, event.tier, event.window_tokens) == ("law", "", 2, 1)
    assert len(event.extra) == 1


def test_short_events_of_sglang_are_read() -> None:
    events = [["BlockStored", [1], 9, list(range(32)), 32, None], ["BlockRemoved", [1]]]
    batch = read_batch(encode([1.5, events]))
    assert batch.events == [Stored([1], 9, TOKENS, 32), Removed([1])]


@pytest.mark.parametrize(
    "event",
    [
        ["BlockMoved", [1]],
        ["BlockStored", [1], None, [1, 2], 16],
        ["BlockStored", [1], None, [-1], 1],
        ["BlockStored", [1], None, [1 << 40], 1],
        ["BlockRemoved", [1], "GPU", 99],
        5,
    ],
)
def test_an_event_that_is_none_is_left_out_and_counted(event: object) -> None:
    batch = read_batch(encode([1.5, [event, ["AllBlocksCleared"]]]))
    assert batch.unread == 1
    assert batch.events == [Cleared()]


def test_an_event_without_blocks_says_nothing_of_their_size() -> None:
    assert read_batch(encode([0.0, [["BlockStored", [], None, [], 2**62]], 0])).events == []


def test_groups_that_no_prefix_needs_say_nothing() -> None:
    told = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1],
            "block_size": 1, "kv_cache_spec_kind": "cross_attention"}  # fmt: skip
    batch = read_batch(encode([1.5, [told]]))
    assert (batch.events, batch.unread) == ([], 0)


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=4) | st.binary(max_size=4)
    | st.sampled_from(["BlockStored", "BlockRemoved", "type", "events", "ts"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
).map(encode))  # fmt: skip
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        read_batch(data)
