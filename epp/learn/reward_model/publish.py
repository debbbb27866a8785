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

    from epp.learn.sidecar.files import Files, Writes
    from epp.learn.sidecar.paths import ModelPaths
    from epp.policies.reward_model import RewardModel

#: Versions that are kept beside the file; `epp records verify` needs those that its records name.
KEPT_VERSIONS = 20


class Publisher:
    """Keeps the model file.

    Args:
        paths: of the files.
        files: the file system.
        writes: reports what cannot be written.
        tell: takes sentences for the log.
    """

    def __init__(self, paths: ModelPaths, files: Files, writes: Writes, tell: Callable[[str], None]) -> None:
        self._paths, self._files, self._writes, self._tell = paths, files, writes, tell
        self._done: str | None = None
        self._content: bytes | None = None

    def bring(self, model: RewardModel | None) -> None:
        """Make the file say this model, or be gone; called again until it does."""
        version = "" if model is None else model.version
        if version == self._done:
            return
        content = None if model is None else dump_reward_model(model)
        if self._writes.attempt("the model file", lambda: self._put(version, content)):
            self._done, self._content = version, content

    def look(self) -> None:
        """Have `bring` write the file again where it is not as it was written."""
        if self._done is None:
            return
        try:
            found = self._files.read(self._paths.model)
        except OSError:  # what is in its way is reported when it is written
            found = b""
        if found != self._content:
            who = "is gone" if found is None else "was changed by somebody else"
            self._tell(f"{self._paths.model} {who}; brought back to what the learner says")
            self._done = None

    def _put(self, version: str, content: bytes | None) -> None:
        if content is None:
            self._files.remove(self._paths.model)
        else:
            self._files.replace(version_path(self._paths.model, version), content)
            if self._files.read(self._paths.model) != content:
                self._files.replace(self._paths.model, content)
        current = version_path(self._paths.model, version) if version else None
        others = [path for path in self._paths.versions() if path != current]
        spare = KEPT_VERSIONS - (current is not None)
        for path in others[: max(len(others) - spare, 0)]:
            self._files.remove(path)
