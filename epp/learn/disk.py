"""The shared folder as the learner uses it: what the tuner does with it, and files that go.

A seam: tests bring a disk that is full, or that stops after any write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from epp.tune.disk import Disk, RealDisk

if TYPE_CHECKING:
    from pathlib import Path


class ModelDisk(Disk, Protocol):
    """What is asked of a file system; every method may raise OSError."""

    def remove(self, path: Path) -> None:
        """Take a file away; one that is not there is fine."""
        ...


class RealModelDisk(RealDisk):
    """The file system."""

    def remove(self, path: Path) -> None:
        """Take a file away; one that is not there is fine."""
        path.unlink(missing_ok=True)
