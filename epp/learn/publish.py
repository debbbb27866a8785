"""The model file: put in place, taken away, and its last versions kept beside it.

Owns these files. Idempotent: called until it says that all is written, it brings the folder to what the
learner's memory says, whatever was left undone before.

Order: the version's own file first, then the file that pickers read. A picker never names a version in its
records that cannot be found; a process that is killed between the two leaves a version that nobody used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.reward_model import dump_reward_model, version_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.learn.disk import ModelDisk
    from epp.learn.places import ModelPlaces
    from epp.policies.reward_model import RewardModel


class Publisher:
    """Keeps the model file.

    Args:
        places: where.
        disk: the file system.
        keep: versions beside the file.
        check: raises when the lock is lost; asked before anything is written.
        tell: takes sentences for the log.
    """

    def __init__(
        self,
        places: ModelPlaces,
        disk: ModelDisk,
        *,
        keep: int,
        check: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._places, self._disk, self._keep = places, disk, keep
        self._check, self._tell = check, tell
        self._done: str | None = None
        self._content: bytes | None = None
        self._failing = ""

    def bring(self, model: RewardModel | None) -> bool:
        """Make the file say this model, or be gone; whether it does.

        Raises:
            LockLostError: another learner has taken over.
        """
        version = "" if model is None else model.version
        if version == self._done:
            return True
        self._check()
        content = None if model is None else dump_reward_model(model)
        try:
            if content is None:
                self._disk.remove(self._places.model)
            else:
                self._disk.replace(version_path(self._places.model, version), content)
                if self._disk.read(self._places.model) != content:
                    self._disk.replace(self._places.model, content)
            self._prune(version)
        except OSError as error:
            if str(error) != self._failing:
                self._tell(f"cannot write the model file: {error}; trying again, pickers keep what they have")
            self._failing = str(error)
            return False
        if self._failing:
            self._tell("the model file is written again")
        self._done, self._failing, self._content = version, "", content
        return True

    def look(self) -> None:
        """Have `bring` write the file again where it is not as it was written."""
        if self._done is None:
            return
        try:
            found = self._disk.read(self._places.model)
        except OSError:  # what is in its way is told when it is written
            found = b""
        if found != self._content:
            who = "is gone" if found is None else "was changed by somebody else"
            self._tell(f"{self._places.model} {who}; brought back to what the learner says")
            self._done = None

    def _prune(self, version: str) -> None:
        current = version_path(self._places.model, version) if version else None
        others = [path for path in self._places.versions() if path != current]
        spare = self._keep - (current is not None)
        for path in others[: max(len(others) - spare, 0)]:
            self._disk.remove(path)
