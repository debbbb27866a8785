"""Reward models of the past, by version: what a recorded decision needs to be run again.

Reads the versions that a learner keeps beside its model file; writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.reward_model import parse_reward_model, version_path
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epp.policies.reward_model import RewardModel


class ModelVersions:
    """Finds models in folders; each is read once.

    Args:
        folders: where to look, in this order; those that do not exist have none.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._found: dict[str, RewardModel | None] = {}

    def get(self, version: str) -> RewardModel | None:
        """The model of that version, None when none of the folders has it whole."""
        if version not in self._found:
            self._found[version] = self._look(version)
        return self._found[version]

    def _look(self, version: str) -> RewardModel | None:
        for folder in self._folders:
            try:
                pattern = version_path(folder / "*.json", version).name
            except ValueError:
                return None
            for path in sorted(folder.glob(pattern)):
                try:
                    model = parse_reward_model(path.read_bytes(), str(path))
                except (OSError, ConfigError):
                    continue
                if model.version == version:
                    return model
        return None
