"""What an operator asks a running tuner for, and how a stopped one is asked: freeze, thaw, roll back.

Owns the request file: the commands write it, the tuner reads it and remembers the last one that it did. Where
no tuner runs, the command takes its lock and does the same to its memory itself, so that the tuner that comes
next goes on from there.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

import msgspec

from epp.tuner.state import Freeze, RollBack, Thaw

if TYPE_CHECKING:
    from epp.tune.disk import Disk
    from epp.tune.places import Places
    from epp.tuner.state import Event


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
    """Write a request.

    Raises:
        OSError: it cannot be written.
    """
    asked = Asked(secrets.token_hex(8), what, reason, number, at_wall_s)
    disk.replace(places.asked, msgspec.json.encode(asked))
    return asked


def read_asked(places: Places, disk: Disk) -> Asked | None:
    """The last request; None for none, or for one that is torn."""
    try:
        content = disk.read(places.asked)
        return None if not content else msgspec.json.decode(content, type=Asked)
    except (OSError, msgspec.MsgspecError):
        return None
