"""The tuner's memory on disk: two files written in turn, so that whatever is torn, the other one is whole.

Owns the envelope (a count and a digest), which of the two is newer, and what is in force meanwhile. The
content is the tuner's state, `epp.tuner.state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from epp.decide.record_files import DAMAGED
from epp.errors import EppError
from epp.tuner.state import State, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.tune.disk import Disk
    from epp.tune.places import Places


class _Envelope(msgspec.Struct):
    count: int
    digest: str
    state: msgspec.Raw


class StateStore:
    """Keeps a state.

    Args:
        places: where.
        disk: the file system.
        tell: takes sentences for the log.
    """

    def __init__(self, places: Places, disk: Disk, tell: Callable[[str], None]) -> None:
        self._places, self._disk, self._tell = places, disk, tell
        self._count = 0
        self._slot = 0

    def load(self) -> State | None:
        """The newest whole state; None when there is none.

        Raises:
            EppError: one of the files is there and cannot be read, or the newer one is whole and of another
                version: to begin anew, or with the older one, would lose what it says for good.
        """
        best: tuple[int, Path, bytes] | None = None
        for slot, path in enumerate(self._places.states):
            try:
                content = self._disk.read_whole(path)
            except OSError as error:
                raise EppError(
                    f"{path}: {error.strerror or error}; the tuner's memory must be readable"
                ) from error
            if content is None:
                continue
            try:
                count, text = _opened(content)
            except ValueError as error:
                self._tell(f"{path}: {error}; not used")
                continue
            if best is None or count > best[0]:
                best = (count, path, text)
                self._count, self._slot = count, 1 - slot
        if best is None:
            return None
        _, path, text = best
        try:
            return from_json(text)
        except ValueError as error:
            both = " and ".join(path.name for path in self._places.states)
            raise EppError(
                f"{path}: {error}; start the version of epp that wrote it, or move {both} away to begin anew "
                "without what it says, a freeze by request among it"
            ) from error

    def save(self, state: State) -> None:
        """Write the state over the older of the two files.

        Raises:
            OSError: it is not on disk; the last one still is.
        """
        text = to_json(state)
        envelope = _Envelope(self._count + 1, xxhash.xxh3_64_hexdigest(text), msgspec.Raw(text))
        self._disk.replace(self._places.states[self._slot], msgspec.json.encode(envelope))
        self._count += 1
        self._slot = 1 - self._slot


def _opened(content: bytes) -> tuple[int, bytes]:
    """Count and content of an envelope.

    Raises:
        ValueError: torn or changed.
    """
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
    except DAMAGED as error:
        raise ValueError(f"torn: {error}") from error
    text = bytes(envelope.state)
    if xxhash.xxh3_64_hexdigest(text) != envelope.digest:
        raise ValueError("its digest does not fit: torn, or changed by hand")
    return envelope.count, text
