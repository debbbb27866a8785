"""What pickers send each other, as bytes.

Every message names format, pool, policy and hashing key; its reader drops messages of any other. Facts name
blocks by their keyed hashes, which pickers that share `prefix.secret_file` understand. All of a message is
decoded, and within bounds, before any of it is used.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Annotated

import msgspec

from epp.prefix_cache.prefix import BlockRun, Prefix
from epp.schedule.program_sharing import ProgramsState  # noqa: TC001  # msgspec reads the annotation
from epp.schedule.queue import MAX_FLOWS
from epp.signals.linear_fit import Learned  # noqa: TC001  # msgspec reads the annotation at run time
from epp.signals.paths import LearnedPath  # noqa: TC001  # likewise
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Before each message; another number is another format.
FORMAT = b"epp\x01"
#: Hashes in one fact; longer prompts are several facts, so no message grows with a prompt.
MAX_BLOCKS = 1024
#: Facts in one message, and from how many bytes on it takes no further one.
MAX_FACTS, MAX_BYTES = 128, 256 * 1024
#: Uses of hop tokens in one message.
MAX_USES = 8192
#: Tokens of a block: it has 32 bytes at least, and no token 512. The index is bounded in tokens.
LEAST_BLOCK_TOKENS, MOST_BLOCK_TOKENS = 1.0 / 16.0, 1e6
_RUN, _HASH_BYTES = struct.Struct("<QQI"), 8

_Name = Annotated[str, msgspec.Meta(max_length=300)]
#: Name of a process, which is part of subjects.
Origin = Annotated[str, msgspec.Meta(max_length=300, pattern=r"\A[A-Za-z0-9_-]*\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Hashes = Annotated[bytes, msgspec.Meta(max_length=_HASH_BYTES * MAX_BLOCKS)]
_UnixS = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]


class IndexDelta(msgspec.Struct, array_like=True, frozen=True):
    """An endpoint was given a prompt, or stores responses.

    Attributes:
        endpoint: address.
        started_s: Unix time since which its engine runs, 0 where it does not tell.
        known: runs of blocks that the sender knew before, packed.
        start: blocks in them.
        blocks: hashes of the blocks below, 8 bytes each.
        block_tokens: tokens of a block.
        stored: keys of responses that its engine stores, 8 bytes each; then the fact names no prompt.
    """

    endpoint: _Name
    started_s: _UnixS
    known: bytes = b""
    start: _Count = 0
    blocks: _Hashes = b""
    block_tokens: Annotated[float, msgspec.Meta(ge=LEAST_BLOCK_TOKENS, le=MOST_BLOCK_TOKENS)] = 1.0
    stored: _Hashes = b""

    def __post_init__(self) -> None:
        """Refuse bytes that are no runs or no hashes."""
        if len(self.known) % _RUN.size or (len(self.blocks) | len(self.stored)) % _HASH_BYTES:
            raise ValueError("no hashes")

    def prefix(self) -> Prefix:
        """Unpack it."""
        blocks = array("Q", self.blocks)
        return Prefix(
            [BlockRun(*run) for run in _RUN.iter_unpack(self.known)], self.start, blocks, self.block_tokens
        )


def facts_of(endpoint: str, started_s: float, prefix: Prefix) -> Iterator[IndexDelta]:
    """Make facts of `MAX_BLOCKS` hashes at most."""
    known, start, blocks = list(prefix.known), prefix.start, prefix.blocks
    block_tokens = min(max(prefix.block_tokens, LEAST_BLOCK_TOKENS), MOST_BLOCK_TOKENS)
    while True:
        part, blocks = blocks[:MAX_BLOCKS], blocks[MAX_BLOCKS:]
        packed = b"".join(_RUN.pack(*run) for run in known)
        yield IndexDelta(endpoint, started_s, packed, start, part.tobytes(), block_tokens)
        if not blocks:
            return
        known.append(BlockRun(part[0], part[-1], len(part)))
        start += len(part)


def taken(facts: Iterator[IndexDelta]) -> list[IndexDelta]:
    """Take as many facts as go into one message."""
    piece, size = list[IndexDelta](), 0
    while len(piece) < MAX_FACTS and size < MAX_BYTES and (delta := next(facts, None)) is not None:
        piece.append(delta)
        size += len(delta.known) + len(delta.blocks) + len(delta.stored)
    return piece


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Pickers that understand each other.

    Attributes:
        pool: name of the pool.
        policy: name of the policy.
        key_id: of block size and hashing key (`BlockHasher.key_id`).
    """

    pool: _Name
    policy: _Name
    key_id: _Name


_Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
_Tokens = Annotated[float, msgspec.Meta(gt=0.0, le=1e15)]
_Gauge = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
_Sequence = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
_Facts = Annotated[list[IndexDelta], msgspec.Meta(max_length=MAX_FACTS)]
_Use = tuple[Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)], _Count]
_Uses = Annotated[list[_Use], msgspec.Meta(max_length=MAX_USES)]
_Flows = Annotated[dict[_Name, _Gauge], msgspec.Meta(max_length=MAX_FLOWS)]
_Band = tuple[_Count, _Gauge, _Flows]


class Lead(msgspec.Struct, array_like=True, frozen=True):
    """Who leads, as a picker knows it.

    Attributes:
        term: rises with each new leader.
        leader: name of its process, empty for nobody.
        wall_s: Unix time of the sender.
    """

    term: _Count
    leader: Origin
    wall_s: _UnixS


class FileContent(msgspec.Struct, array_like=True, frozen=True):
    """What the leader has in one of the files that all pickers follow.

    Attributes:
        group: the leader's.
        lead: the leader's own.
        name: of the file.
        content: its bytes, compressed; None for no file.
    """

    group: Group
    lead: Lead
    name: _Name
    content: bytes | None


class Message(msgspec.Struct, array_like=True, frozen=True):
    """What one picker says to all, or to one.

    Attributes:
        group: the sender's.
        origin: the sender's process.
        sequence: counts its messages to all; -1 for one to one picker.
        changed_s: Unix time of the earliest change in it, 0 for none.
        whole: ``load`` is all in-flight load of the sender, not just what changed.
        load: in-flight load by endpoint: the rows of `LoadLedger.block`.
        facts: prompts given since its last message.
        ejected: endpoints that the sender has ejected since its last message, and for how many seconds.
        paused: endpoints that asked it to be left alone (``Retry-After``), likewise.
        ask: sequence after which the reader is asked for facts again, -1 for all that it knows; None for
            nothing.
        wants: facts of the reader whose known runs the sender misses.
        last: the end of what was asked for.
        rates: what the sender's rates rest on, by engine class (`epp.signals.rates.RateTable.learned`).
        hits: what its hit ratios rest on, by endpoint.
        leaves: the sender ends.
        lead: who leads; None of a picker that cannot.
        used: hop tokens used since its last message, with ``last`` the newest of all: use and expiry in
            Unix ms (`epp.regions.hop`).
        paths: what its paths rest on, by region or endpoint (`epp.signals.paths.PathTable.learned`).
        queue: what waits at the sender by priority, and what it served meanwhile
            (`epp.schedule.queue.BandState`).
        held: the same of agents' turns that are held there.
        programs: what changed of agents (`epp.schedule.program_sharing`).
    """

    group: Group
    origin: Origin
    sequence: _Sequence
    changed_s: _UnixS = 0.0
    whole: bool = False
    load: dict[str, tuple[_Gauge, _Gauge, _Gauge, _Gauge, _Gauge]] = {}
    facts: _Facts = []
    ejected: dict[str, _Seconds] = {}
    paused: dict[str, _Seconds] = {}
    ask: _Sequence | None = None
    wants: _Facts = []
    last: bool = False
    rates: dict[str, tuple[Learned, Learned]] = {}
    hits: dict[str, tuple[_Tokens, _Tokens]] = {}
    leaves: bool = False
    lead: Lead | None = None
    paths: dict[str, LearnedPath] = {}
    used: _Uses = []
    queue: dict[int, _Band] = {}
    held: dict[int, _Band] = {}
    programs: ProgramsState | None = None


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Make bytes of a message."""
    return FORMAT + _ENCODER.encode(message)


def decode(data: bytes) -> Message | None:
    """Read a message; None for another format.

    Raises:
        UnreadableError: it is none.
    """
    return read(_DECODER, memoryview(data)[len(FORMAT) :]) if data.startswith(FORMAT) else None
