"""What a region tells its peers, as bytes, and when.

Owns the own region's sketch, the message counter and what was said last. A summary holds gauges, which
replace those before, and changes of the sketch; whoever missed one asks for the whole sketch.
"""

from __future__ import annotations

import math
import zlib
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from epp.errors import UnreadableError
from epp.regions.sketch import CHANGE_BYTES, STRIDE, Sketch, are_changes
from epp.signals.ledger import PENDING, RUNNING
from epp.wire import read

if TYPE_CHECKING:
    from epp.signals.datastore import Datastore
    from epp.types import Floats, Slots

#: Before each message; another number is another format.
FORMAT = b"eppr\x01"
#: A summary goes out so often at least, and at most.
EVERY_S, LEAST_S = 1.0, 0.1
#: Changes of the sketch in one summary.
MAX_CHANGES = 16_384
#: What counts as a change of load: this share of what was said, and at least so many places, running requests
#: and tokens that await their first token.
_SHARE, _PLACES, _REQUESTS, _TOKENS = 0.1, 1.0, 0.5, 500.0

#: Tokens that a replica keeps.
_MOST_TOKENS = 1e12
_Gauge = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
_Load = tuple[_Gauge, _Gauge, _Gauge, _Gauge, _Gauge]
_Rates = tuple[_Gauge, _Gauge, _Gauge, _Gauge]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]
_Engine = tuple[_Gauge | None, _Gauge | None, _Share | None, _Gauge | None]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=300)]


class Summary(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A region in short.

    Attributes:
        region: the sender's.
        key_id: of its block size and hashing key (`BlockHasher.key_id`): a sketch under another says nothing.
        origin: the sender's process, another name at each start.
        sequence: counts the summaries of the process from 0.
        wall_s: Unix time of the sender.
        replicas: engines that may serve.
        room: requests that they take before any waits.
        load: in-flight load of each of them, on average: the rows of `LoadLedger.block`.
        engine: the same of their metrics: running, waiting, share of the KV cache in use, its tokens in use;
            None for what is not known of any.
        rates: the same of `epp.signals.rates.Rates`.
        hit_ratio: the same of cached over expected tokens.
        changes: of the sketch (`Sketch.changes`).
    """

    region: _Name
    key_id: _Name
    origin: _Name
    sequence: _Count
    wall_s: _Gauge
    replicas: _Count
    room: _Gauge
    load: _Load
    engine: _Engine
    rates: _Rates
    hit_ratio: _Gauge
    changes: Annotated[bytes, msgspec.Meta(max_length=CHANGE_BYTES * MAX_CHANGES)] = b""

    @property
    def is_sound(self) -> bool:
        """Whether its changes are such of a sketch, and its caches of a size that can be."""
        _, _, usage, used = self.engine
        return are_changes(self.changes) and not (usage and used and used / usage > _MOST_TOKENS)


class SketchContent(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A whole sketch.

    Attributes:
        region, origin: the sender's, as in `Summary`.
        sequence: of the last summary whose changes are in it, -1 for none.
        cells: the compressed content.
    """

    region: _Name
    origin: _Name
    sequence: Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
    cells: bytes


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Summary | SketchContent)


def encode(message: Summary | SketchContent) -> bytes:
    """Make bytes of a message."""
    return FORMAT + _ENCODER.encode(message)


def decode(data: bytes) -> Summary | SketchContent | None:
    """Read a message; None for another format.

    Raises:
        UnreadableError: it is none.
    """
    if not data.startswith(FORMAT):
        return None
    message: Summary | SketchContent = read(_DECODER, memoryview(data)[len(FORMAT) :])
    if isinstance(message, Summary) and not message.is_sound:
        raise UnreadableError("figures or changes that cannot be")
    return message


class Summaries:
    """Makes the summaries of a region; of several pickers there the leading one has it.

    Args:
        datastore: the signals; the log of its prefix index is taken.
        region: the own one.
        origin: name of this process and start.
        key_id: of the index's hashes.

    Attributes:
        sketch: what the region's engines hold.
        sent: summaries made.
        sent_bytes: their bytes.
    """

    def __init__(self, datastore: Datastore, *, region: str, origin: str, key_id: str) -> None:
        self._datastore, self._region, self._origin, self._key_id = datastore, region, origin, key_id
        self._log = datastore.index.follow_held(STRIDE)
        self.sketch = Sketch()
        self._sequences = count()
        self._sent_s = -math.inf
        self._said = (-1.0, -1.0, -1.0)
        self.sent = self.sent_bytes = 0
        self._whole = -1, b""

    def make(self, now_s: float, wall_s: float) -> bytes | None:
        """Make the summary that is due; None for none. To be asked every `LEAST_S`."""
        if now_s - self._sent_s < 0.9 * LEAST_S:  # timers are not exact
            return None
        self._follow()
        own = self._datastore.serving(now_s)
        promised = self._datastore.in_flight_tokens(own)
        load = promised.mean(axis=1) if len(own) else promised.sum(axis=1)
        room = float(self._datastore.room.places(own, promised[RUNNING]).sum())
        now = room, float(load[RUNNING]), float(load[PENDING])
        if now_s - self._sent_s < EVERY_S and not self.sketch.changed and not self._moved(now):
            return None
        self._sent_s, self._said = now_s, now
        message = encode(
            Summary(
                region=self._region,
                key_id=self._key_id,
                origin=self._origin,
                sequence=next(self._sequences),
                wall_s=wall_s,
                replicas=len(own),
                room=room,
                load=_tuple(load),
                engine=self._engine(own, now_s),
                rates=_tuple(self._datastore.rates.block()[:, own].sum(axis=1) / max(len(own), 1)),
                hit_ratio=float(self._datastore.calibration.hit_ratio[own].mean()) if len(own) else 1.0,
                changes=self.sketch.changes(MAX_CHANGES),
            )
        )
        self.sent += 1
        self.sent_bytes += len(message)
        return message

    def whole(self) -> bytes:
        """Make a message of the whole sketch, for a peer that missed changes."""
        if self._whole[0] != self.sent:  # made once for all that ask before the next summary
            self._follow()
            cells = zlib.compress(self.sketch.content(), 1)
            content = SketchContent(self._region, self._origin, self.sent - 1, cells)
            self._whole = self.sent, encode(content)
        return self._whole[1]

    def stop(self) -> None:
        """Follow the index no more: another picker of the region makes summaries."""
        self._datastore.index.unfollow_held()

    def _follow(self) -> None:
        for held, blocks in self._log:
            for block in blocks:
                (self.sketch.insert if held else self.sketch.delete)(block)
        self._log.clear()

    def _moved(self, now: tuple[float, float, float]) -> bool:
        room, said_room = now[0], self._said[0]
        if (room > 0.0) != (said_room > 0.0):
            return True
        least = (_PLACES, _REQUESTS, _TOKENS)
        return any(
            abs(new - old) > max(_SHARE * old, few)
            for new, old, few in zip(now, self._said, least, strict=True)
        )

    def _engine(self, own: Slots, now_s: float) -> _Engine:
        block = self._datastore.engine.block(now_s)[:, own]
        known = ~np.isnan(block)
        sums, counts = np.where(known, block, 0.0).sum(axis=1), known.sum(axis=1)
        running, waiting, usage, used = (
            float(total / count) if count else None for total, count in zip(sums, counts, strict=True)
        )
        return running, waiting, usage, used


def _tuple(column: Floats) -> Any:
    return tuple(column.tolist())
