"""Names of all that lies beside a weights file. One writer each; all but that file may be deleted.

* ``weights.yaml`` - what pickers read; the tuner writes it.
* ``weights.lock`` - who the tuner is.
* ``weights.tuner-a.json``, ``weights.tuner-b.json`` - the tuner's memory, written in turn.
* ``weights.audit.jsonl`` - what happened and why; the older half in ``weights.audit.1.jsonl``.
* ``weights.asked.json`` - what operators asked a running tuner for; commands write it, in
  turns by ``weights.asked.lock``.
* ``weights.unreadable`` - a weights file that was found torn, put aside.
* ``overrides.yaml`` - pins; the operator's, whose commands write it in turns by
  ``overrides.pins.lock``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """Paths, from the weights file's."""

    weights: Path

    def __post_init__(self) -> None:
        """Check that there is a name to put endings to.

        Raises:
            EppError: there is none, as of ``/`` or an empty flag.
        """
        if self.weights.name in ("", ".."):
            raise EppError(f"{self.weights} names a folder, not the file that is shared with pickers")

    def _beside(self, ending: str) -> Path:
        return self.weights.with_name(f"{self.weights.stem}.{ending}")

    @property
    def lock(self) -> Path:
        """Lock of the tuner."""
        return self._beside("lock")

    @property
    def states(self) -> tuple[Path, Path]:
        """Both halves of the memory."""
        return self._beside("tuner-a.json"), self._beside("tuner-b.json")

    @property
    def audit(self) -> Path:
        """Audit log."""
        return self._beside("audit.jsonl")

    @property
    def audit_before(self) -> Path:
        """Its older part."""
        return self._beside("audit.1.jsonl")

    @property
    def asked(self) -> Path:
        """Requests of operators."""
        return self._beside("asked.json")

    @property
    def asked_lock(self) -> Path:
        """Lock of whoever writes them."""
        return self._beside("asked.lock")

    @property
    def unreadable(self) -> Path:
        """A weights file that said nothing."""
        return self._beside("unreadable")
