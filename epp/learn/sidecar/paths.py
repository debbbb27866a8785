"""Names of all that lies beside a file shared with pickers. One writer each; all but it may be deleted.

Beside ``weights.yaml``, which the tuner writes:

* ``weights.lock`` - who the tuner is.
* ``weights.tuner.json`` - the tuner's memory.
* ``weights.requests.json`` - what operators asked a running tuner for; commands write it, in turns by
  ``weights.requests.lock``.
* ``weights.unreadable`` - a weights file that was found torn, put aside.
* ``overrides.yaml`` - pins; the operator's, whose commands write it in turns by ``overrides.pins.lock``.

Beside ``reward.json``, which the learner writes:

* ``reward.VERSION.json`` - the last versions of it (`epp.records.model_files.version_path`).
* ``reward.lock`` - who the learner is.
* ``reward.learner.msgpack`` - the learner's memory.
* ``reward.status.json`` - where it stands, for `epp learn status`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class WeightsPaths:
    """Paths of the tuner, from the weights file's."""

    def __init__(self, weights: Path) -> None:
        self.weights = weights
        self.lock = weights.with_name(f"{weights.stem}.lock")
        self.memory = weights.with_name(f"{weights.stem}.tuner.json")
        self.requests = weights.with_name(f"{weights.stem}.requests.json")
        self.requests_lock = weights.with_name(f"{weights.stem}.requests.lock")
        self.unreadable = weights.with_name(f"{weights.stem}.unreadable")


class ModelPaths:
    """Paths of the learner, from the model file's."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.lock = model.with_name(f"{model.stem}.lock")
        self.memory = model.with_name(f"{model.stem}.learner.msgpack")
        self.status = model.with_name(f"{model.stem}.status.json")

    def versions(self) -> list[Path]:
        """List the versions that are kept, oldest first."""
        stem, suffix = re.escape(self.model.stem), re.escape(self.model.suffix)
        named = re.compile(rf"{stem}\.[0-9a-f]{{16}}{suffix}")
        if not self.model.parent.is_dir():
            return []
        found = [path for path in self.model.parent.iterdir() if named.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)
