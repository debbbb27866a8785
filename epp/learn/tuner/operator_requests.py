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

from epp.learn.sidecar.files import exclusive
from epp.learn.tuner.state import Freeze, RollBack, Thaw
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.learn.sidecar.files import Files
    from epp.learn.sidecar.paths import WeightsPaths
    from epp.learn.tuner.state import Event

#: Requests that the file keeps, the newest; a tuner that runs does each within seconds.
KEPT = 20


class OperatorRequest(msgspec.Struct, frozen=True):
    """What an operator asks for.

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
        """The event of the machine."""
        reason = self.reason or "no reason given"
        if self.what == "freeze":
            return Freeze(now_wall_s, reason)
        if self.what == "thaw":
            return Thaw(now_wall_s, reason)
        return RollBack(now_wall_s, self.number, reason)


def ask(
    paths: WeightsPaths,
    files: Files,
    what: Literal["freeze", "thaw", "rollback"],
    *,
    reason: str,
    at_wall_s: float,
    number: int = -1,
) -> OperatorRequest:
    """Add a request to those on file.

    Raises:
        OSError: the file cannot be read or written.
    """
    reason = reason.encode(errors="replace").decode()  # an argument may be no UTF-8, and JSON is
    request = OperatorRequest(secrets.token_hex(8), what, reason, number, at_wall_s)
    with exclusive(paths.requests_lock):
        files.replace(paths.requests, msgspec.json.encode([*_on_file(paths, files), request][-KEPT:]))
    return request


def withdraw(paths: WeightsPaths, files: Files, request: OperatorRequest) -> None:
    """Take a request back: nobody shall do it later."""
    with contextlib.suppress(OSError), exclusive(paths.requests_lock):
        left = [other for other in _on_file(paths, files) if other.id != request.id]
        files.replace(paths.requests, msgspec.json.encode(left))


def read_requests(paths: WeightsPaths, files: Files) -> list[OperatorRequest]:
    """The requests on file, oldest first, done or not; none where it cannot be read or is torn."""
    try:
        return _on_file(paths, files)
    except OSError:
        return []


def not_done(requests: Sequence[OperatorRequest], done: str) -> list[OperatorRequest]:
    """Requests that `as_done` did not name."""
    ids = set(done.split(","))
    return [request for request in requests if request.id not in ids]


def as_done(requests: Sequence[OperatorRequest]) -> str:
    """All of them as done, in a word that can be persisted."""
    return ",".join(request.id for request in requests)


def _on_file(paths: WeightsPaths, files: Files) -> list[OperatorRequest]:
    content = files.read(paths.requests)
    try:
        return msgspec.json.decode(content, type=list[OperatorRequest]) if content else []
    except DAMAGED:
        return []
