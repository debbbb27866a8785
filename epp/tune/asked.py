"""What an operator asks a running tuner for, and how a stopped one is asked: freeze, thaw, roll back.

Owns the request file: the commands add to it, the tuner reads it and remembers which of them it has done, so
that several that come within one of its looks are all done, in order. Where no tuner runs, the command takes
its lock and does the same to its memory itself, so that the tuner that comes next goes on from there.
Commands that come at the same moment add to the file in turns, by an `flock` beside it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Literal

import msgspec

from epp.decide.record_files import DAMAGED
from epp.tune.disk import in_turn
from epp.tuner.state import Freeze, RollBack, Thaw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.tune.disk import Disk
    from epp.tune.places import Places
    from epp.tuner.state import Event

#: Requests that the file keeps, the newest; a tuner that runs does each within seconds.
KEPT = 20


class Asked(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        id: drawn for each.
        what: which.
        reason: why, in the operator's words.
        number: of the weights to go back to.
        at_wall_s: Unix time of asking.
    """

    id: str
    what: Literal["freeze", "thaw", "rollback"]
    reason: str = ""
    number: int = -1
    at_wall_s: float = 0.0

    def event(self, now_wall_s: float) -> Event:
        """What the machine is told."""
        reason = self.reason or "no reason given"
        if self.what == "freeze":
            return Freeze(now_wall_s, reason)
        if self.what == "thaw":
            return Thaw(now_wall_s, reason)
        return RollBack(now_wall_s, self.number, reason)


def ask(
    places: Places,
    disk: Disk,
    what: Literal["freeze", "thaw", "rollback"],
    *,
    reason: str,
    at_wall_s: float,
    number: int = -1,
) -> Asked:
    """Add a request to those on file.

    Raises:
        OSError: the file cannot be read or written.
    """
    reason = reason.encode(errors="replace").decode()  # an argument may be no UTF-8, and JSON is
    asked = Asked(secrets.token_hex(8), what, reason, number, at_wall_s)
    with in_turn(places.asked_lock):
        disk.replace(places.asked, msgspec.json.encode([*_on_file(places, disk), asked][-KEPT:]))
    return asked


def withdraw(places: Places, disk: Disk, asked: Asked) -> None:
    """Take a request back: nobody shall do it later."""
    with contextlib.suppress(OSError), in_turn(places.asked_lock):
        left = [other for other in _on_file(places, disk) if other.id != asked.id]
        disk.replace(places.asked, msgspec.json.encode(left))


def read_asked(places: Places, disk: Disk) -> list[Asked]:
    """The requests on file, oldest first, done or not; none where it cannot be read or is torn."""
    try:
        return _on_file(places, disk)
    except OSError:
        return []


def not_done(requests: Sequence[Asked], done: str) -> list[Asked]:
    """Those that are not among what `as_done` told of."""
    ids = set(done.split(","))
    return [asked for asked in requests if asked.id not in ids]


def as_done(requests: Sequence[Asked]) -> str:
    """All of them as done, in a word that can be persisted."""
    return ",".join(asked.id for asked in requests)


def _on_file(places: Places, disk: Disk) -> list[Asked]:
    content = disk.read(places.asked)
    try:
        return msgspec.json.decode(content, type=list[Asked]) if content else []
    except DAMAGED:
        return []
