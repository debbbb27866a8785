"""The audit log: one JSON object a line for everything that the tuner or an operator did, and why.

Owns the file's form and its bound. A log that cannot be written is told once and holds nobody up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.decide.record_files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.tune.disk import Disk
    from epp.tune.places import Places

#: Size at which the log is put aside; the one put aside before is dropped.
MAX_BYTES = 8 * 1024 * 1024


class Audit:
    """Appends to the log.

    Args:
        places: where.
        disk: the file system.
        tell: takes sentences for the log of the process.
        who: ``tuner``, or the command.
    """

    def __init__(self, places: Places, disk: Disk, tell: Callable[[str], None], who: str) -> None:
        self._places, self._disk, self._tell, self._who = places, disk, tell, who
        self._failing = False
        self._bytes: int | None = None

    def write(self, at_wall_s: float, what: str, **facts: object) -> None:
        """One line.

        Args:
            at_wall_s: Unix time.
            what: one word for it.
            facts: plain values.
        """
        entry = {"at": round(at_wall_s, 3), "who": self._who, "what": what, **facts}
        line = msgspec.json.encode(entry) + b"\n"
        try:
            self._make_room(len(line))
            self._disk.append(self._places.audit, line)
        except OSError as error:
            if not self._failing:
                self._tell(f"{self._places.audit}: {error}; the audit log has a gap from here on")
            self._failing = True
            return
        self._failing = False

    def _make_room(self, wanted_bytes: int) -> None:
        if self._bytes is None:
            self._bytes = len(self._disk.read(self._places.audit) or b"")
        if self._bytes + wanted_bytes > MAX_BYTES:
            self._disk.replace(self._places.audit_before, self._disk.read(self._places.audit) or b"")
            self._disk.replace(self._places.audit, b"")
            self._bytes = 0
        self._bytes += wanted_bytes


def read_audit(places: Places, disk: Disk) -> list[Mapping[str, Any]]:
    """All entries, oldest first; lines that are not whole are passed over.

    Raises:
        OSError: a file cannot be read.
    """
    entries: list[Mapping[str, Any]] = []
    for path in (places.audit_before, places.audit):
        for line in (disk.read(path) or b"").splitlines():
            try:
                entry = msgspec.json.decode(line)
            except DAMAGED:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
    return entries
