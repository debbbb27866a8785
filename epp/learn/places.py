"""Names of all that lies beside a model file. One writer each; all but that file may be deleted.

* ``reward.json`` - what pickers read; the learner writes it.
* ``reward.VERSION.json`` - the last versions of it (`epp.config.reward_model.version_path`).
* ``reward.lock`` - who the learner is.
* ``reward.learner-a.npz``, ``reward.learner-b.npz`` - the learner's memory, written in turn.
* ``reward.audit.jsonl`` - what happened and why; the older half in ``reward.audit.1.jsonl``.
* ``reward.status.json`` - where it stands, for `epp learn status`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.tune.places import Places

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelPlaces(Places):
    """Paths, from the model file's, which stands where a tuner has the weights file."""

    @property
    def model(self) -> Path:
        """What pickers read."""
        return self.weights

    @property
    def states(self) -> tuple[Path, Path]:
        """Both halves of the memory."""
        return self._beside("learner-a.npz"), self._beside("learner-b.npz")

    @property
    def status(self) -> Path:
        """Where the learner stands."""
        return self._beside("status.json")

    def versions(self) -> list[Path]:
        """The versions that are kept, oldest first."""
        stem, suffix = re.escape(self.model.stem), re.escape(self.model.suffix)
        named = re.compile(rf"{stem}\.[0-9a-f]{{16}}{suffix}")
        try:
            found = [path for path in self.model.parent.iterdir() if named.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(found, key=_modified_ns)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # somebody was faster
        return 0
