"""Read the messages in which engines tell what enters and leaves their KV caches.

vLLM and SGLang publish batches in msgpack (source: ``vllm/distributed/kv_events.py`` and
``sglang/srt/disaggregation/kv_events.py``): an array or a map of time, events and data-parallel rank. An
event is an array whose first field is its type, or a map with ``type``; newer versions add fields at the end.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from epp.errors import UnreadableError
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where a block lies: on the accelerator, in the host's memory, on a disk or further away.
TIERS = ("gpu", "cpu", "disk")
_TIER_OF = {None: 0, "": 0, "GPU": 0, "gpu": 0, "CPU": 1, "cpu": 1, "CPU_PINNED": 1}
_FAR = 2
#: Groups of a hybrid model that are told apart.
MAX_GROUPS = 16
#: Kinds of groups that hold recurrent states or a part of the context, and those that no prefix needs.
_LAST_BLOCK = frozenset({"mamba", "chunked_local_attention"})
_NO_PREFIX = frozenset({"encoder_only_attention", "cross_attention"})
_MAP_FIRST = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_WORD = (1 << 64) - 1


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that entered a cache, each behind the one before.

    Attributes:
        hashes: the engine's names for them.
        parent: its name for the block before, None at the start of a prompt.
        tokens: token ids of all of them, 4 bytes each.
        block_tokens: of each.
        lora: the adapter's name, ``""`` for the base model.
        salt: what keeps the prompt apart, ``""`` for nothing; known of a prompt's first block alone.
        extra: by block what else its content hangs on, such as pieces of media; empty for nothing.
        tier: index of `TIERS`.
        group: of the layers that hold it.
        window_tokens: how much before a prompt's next token the group must hold, 0 for all.
    """

    hashes: list[int]
    parent: int | None
    tokens: bytes
    block_tokens: int
    lora: str = ""
    salt: str = ""
    extra: tuple[bytes, ...] = ()
    tier: int = 0
    group: int = 0
    window_tokens: int = 0


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Blocks that left a tier of a cache; fields as in `Stored`."""

    hashes: list[int]
    tier: int = 0
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """A cache is empty."""


Event = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True):
    """What one message tells.

    Attributes:
        rank: data-parallel rank, 0 where there is one.
        events: in their order.
        unread: events of another kind or form.
    """

    rank: int
    events: list[Event]
    unread: int


# The same fields twice: arrays come without names, maps with them.
class _ListStored(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class _ListRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _ListCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class _MapStored(_ListStored, array_like=False, tag="BlockStored", gc=False):
    pass


class _MapRemoved(_ListRemoved, array_like=False, tag="BlockRemoved", gc=False):
    pass


class _MapCleared(_ListCleared, array_like=False, tag="AllBlocksCleared"):
    pass


_Told = _ListStored | _ListRemoved | _ListCleared
_MapTold = _MapStored | _MapRemoved | _MapCleared
_Events = TypeVar("_Events")


class _ListBatch(msgspec.Struct, Generic[_Events], array_like=True):
    ts: float
    events: _Events
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct, Generic[_Events]):
    ts: float
    events: _Events
    data_parallel_rank: int | None = None


# What engines send, by whether the batch is a map; last, where one event is odd, each by itself.
_MAP_BATCHES: tuple[msgspec.msgpack.Decoder[_ListBatch[Any] | _MapBatch[Any]], ...] = (
    msgspec.msgpack.Decoder(_MapBatch[list[_MapTold]]),
    msgspec.msgpack.Decoder(_MapBatch[list[msgspec.Raw]]),
)
_LIST_BATCHES: tuple[msgspec.msgpack.Decoder[_ListBatch[Any] | _MapBatch[Any]], ...] = (
    msgspec.msgpack.Decoder(_ListBatch[list[_MapTold]]),
    msgspec.msgpack.Decoder(_ListBatch[list[_Told]]),
    msgspec.msgpack.Decoder(_ListBatch[list[msgspec.Raw]]),
)
_LIST_EVENT = msgspec.msgpack.Decoder(_Told)
_MAP_EVENT = msgspec.msgpack.Decoder(_MapTold)
_ENCODE = msgspec.msgpack.Encoder().encode


def read_batch(data: bytes) -> Batch:
    """Decode one message.

    Raises:
        UnreadableError: it is no batch; an event that is none is left out and counted in the batch.
    """
    batch = _decode(data)
    events, unread = list[Event](), 0
    before, removed = None, list[int]()  # place and blocks of the last event, where it is a removal
    for each in batch.events:
        try:
            told = _read_event(each) if isinstance(each, msgspec.Raw) else each
            place = None
            if isinstance(told, _ListRemoved):
                place = told.medium, told.group_idx, told.locality
                if place == before:  # vLLM tells of each block by itself
                    removed += _names(told.block_hashes)
                    continue
            event = _event(told)
        except UnreadableError:
            unread += 1
            continue
        if event is not None:
            events.append(event)
            before, removed = place, event.hashes if isinstance(event, Removed) else []
    return Batch(max(batch.data_parallel_rank or 0, 0), events, unread)


def _decode(data: bytes) -> _ListBatch[Any] | _MapBatch[Any]:
    """Decode a batch at once where all its events are of the usual forms, else leave them for later."""
    *usual, last = _MAP_BATCHES if _is_map(data) else _LIST_BATCHES
    for decoder in usual:
        with suppress(UnreadableError):
            return read(decoder, data)
    return read(last, data)


def _names(hashes: Sequence[int | bytes]) -> list[int]:
    """Name blocks by 64 bits: of longer hashes the last, as llm-d takes."""
    return [int.from_bytes(name[-8:]) if isinstance(name, bytes) else name & _WORD for name in hashes]


def _is_map(data: bytes) -> bool:
    return bool(data) and data[0] in _MAP_FIRST


def _read_event(raw: msgspec.Raw) -> _Told:
    data = bytes(raw)
    return read(_MAP_EVENT, data) if _is_map(data) else read(_LIST_EVENT, data)


def _event(told: _Told) -> Event | None:
    """Reduce an event, None for what says nothing of prefixes.

    Raises:
        UnreadableError: it cannot be.
    """
    if isinstance(told, _ListCleared):
        return Cleared()
    group = told.group_idx or 0
    if not 0 <= group < MAX_GROUPS:
        raise UnreadableError(f"group {group}")
    tier = _FAR if told.locality == "REMOTE" else _TIER_OF.get(told.medium, _FAR)
    hashes = _names(told.block_hashes)
    if isinstance(told, _ListRemoved):
        return Removed(hashes, tier, group)
    if told.kv_cache_spec_kind in _NO_PREFIX or not hashes:  # without blocks their size could be anything
        return None
    return _stored(told, hashes, tier, group)


def _stored(told: _ListStored, hashes: list[int], tier: int, group: int) -> Stored:
    """Check and reduce an event of stored blocks."""
    try:
        tokens = array("I", told.token_ids).tobytes()
    except OverflowError as error:
        raise UnreadableError(str(error)) from None
    if told.block_size <= 0 or len(told.token_ids) != told.block_size * len(hashes):
        raise UnreadableError(f"{len(told.token_ids)} tokens in {len(hashes)} blocks of {told.block_size}")
    lora = told.lora_name or ("" if told.lora_id is None else f"id {told.lora_id}")
    salt, extra = _extra(told.extra_keys, lora, first=told.parent_block_hash is None)
    window_tokens = 1 if told.kv_cache_spec_kind in _LAST_BLOCK else told.kv_cache_spec_sliding_window or 0
    parent = None if told.parent_block_hash is None else _names([told.parent_block_hash])[0]
    return Stored(
        hashes, parent, tokens, told.block_size, lora, salt, extra, tier, group, max(window_tokens, 0)
    )


def _extra(keys: list[Any] | None, lora: str, *, first: bool) -> tuple[str, tuple[bytes, ...]]:
    """Part a prompt's salt, which its first block has, from what else the blocks hang on."""
    if not keys:
        return "", ()
    salt, extra = "", list[bytes]()
    for place, of_block in enumerate(keys):
        left = [key for key in of_block or () if key != lora] if isinstance(of_block, list | tuple) else []
        if first and place == 0:
            salt = next((key for key in left if isinstance(key, str)), "")
            left = [key for key in left if key != salt]
        extra.append(_ENCODE(left) if left else b"")
    return salt.removeprefix("cache_salt:"), tuple(extra) if any(extra) else ()
