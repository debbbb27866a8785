"""What an operator asks a running tuner for: freeze, thaw, roll back.

Owns the request file. Commands add to it in turns, by an `flock` beside it; the tuner reads it and remembers
which requests it has done, so that several that come within one of its looks are all done, in order.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

import msgspec

from epp.learn.sidecar.files import Files, exclusive
from epp.learn.tuner.state import Freeze, RollBack, Thaw
from epp.records.files import DAMAGED
from epp.server.files import read_file

if TYPE_CHECKING:
    from epp.learn.sidecar.paths import WeightsPaths
    from epp.learn.tuner.state import Event

#: Requests that the file keeps, the newest; a tuner that runs does each within seconds.
KEPT = 20
What = Literal["freeze", "thaw", "rollback"]


class OperatorRequest(msgspec.Struct, frozen=True):
    """What an operator asks for.

    Attributes:
        what: which.
        reason: why, in the operator's words.
        number: of the weights to go back to.
        id: drawn for each.
    """

    what: What
    reason: str = ""
    number: int = -1
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))

    def event(self, now_wall_s: float) -> Event:
        """Return the event of the machine."""
        reason = self.reason or "no reason given"
        if self.what == "freeze":
            return Freeze(now_wall_s, reason)
        if self.what == "thaw":
            return Thaw(now_wall_s, reason)
        return RollBack(now_wall_s, self.number, reason)


def ask(paths: WeightsPaths, request: OperatorRequest) -> None:
    """Add a request to those on file.

    Raises:
        OSError: the file cannot be written.
    """
    with exclusive(paths.requests_lock):
        Files().replace(paths.requests, msgspec.json.encode([*read_requests(paths), request][-KEPT:]))


def read_requests(paths: WeightsPaths) -> list[OperatorRequest]:
    """Read the requests on file, oldest first, done or not; none where the file is torn or cannot be read."""
    try:
        return msgspec.json.decode(read_file(paths.requests) or b"[]", type=list[OperatorRequest])
    except (OSError, *DAMAGED):
        return []
