"""Names of all that lies beside a file shared with pickers. One writer each; all but it may be deleted.

Beside ``weights.yaml``, which the tuner writes:

* ``weights.lock`` - who the tuner is.
* ``weights.tuner.json`` - the tuner's memory.
* ``weights.requests.json`` - what operators asked a running tuner for; commands write it, in turns by
  ``weights.requests.lock``.
* ``weights.unreadable`` - a weights file that was found torn, put aside.
* ``overrides.yaml`` - pins; the operator's, whose commands write it in turns by ``overrides.pins.lock``.

Beside ``reward.json``, which the learner writes:

* ``reward.VERSION.json`` - the last versions of it (`epp.config.reward_model.version_path`).
* ``reward.lock`` - who the learner is.
* ``reward.learner.msgpack`` - the learner's memory.
* ``reward.status.json`` - where it stands, for `epp learn status`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SidecarPaths:
    """Paths beside a shared file."""

    shared: Path

    def __post_init__(self) -> None:
        """Check that there is a name to put endings to.

        Raises:
            EppError: there is none, as of ``/`` or an empty flag.
        """
        if self.shared.name in ("", ".."):
            raise EppError(f"{self.shared} names a folder, not the file that is shared with pickers")

    def beside(self, ending: str) -> Path:
        """A file that belongs to the shared one."""
        return self.shared.with_name(f"{self.shared.stem}.{ending}")

    @property
    def lock(self) -> Path:
        """Lock of the writer."""
        return self.beside("lock")


@dataclass(frozen=True, slots=True)
class WeightsPaths(SidecarPaths):
    """Paths of the tuner, from the weights file's."""

    @property
    def weights(self) -> Path:
        """What pickers read."""
        return self.shared

    @property
    def memory(self) -> Path:
        """What the tuner knows."""
        return self.beside("tuner.json")

    @property
    def requests(self) -> Path:
        """Requests of operators."""
        return self.beside("requests.json")

    @property
    def requests_lock(self) -> Path:
        """Lock of whoever writes them."""
        return self.beside("requests.lock")

    @property
    def unreadable(self) -> Path:
        """A weights file that said nothing."""
        return self.beside("unreadable")


@dataclass(frozen=True, slots=True)
class ModelPaths(SidecarPaths):
    """Paths of the learner, from the model file's."""

    @property
    def model(self) -> Path:
        """What pickers read."""
        return self.shared

    @property
    def memory(self) -> Path:
        """What the learner knows."""
        return self.beside("learner.msgpack")

    @property
    def status(self) -> Path:
        """Where the learner stands."""
        return self.beside("status.json")

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
