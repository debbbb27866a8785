"""Decision ids: nobody can guess one, and the process that made one knows it again without keeping it."""

from __future__ import annotations

import secrets


class DecisionIds:
    """Ids of this process: a random prefix, by which they are unique over processes, and a counter."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._last = 0

    def __call__(self) -> str:
        """Make the next id."""
        self._last += 1
        return f"{self._prefix}-{self._last:x}"

    def __contains__(self, decision_id: str) -> bool:
        """Tell whether this process made an id."""
        _, _, number = decision_id.partition("-")
        try:
            count = int(number, 16)
        except ValueError:
            return False
        return 0 < count <= self._last and decision_id == f"{self._prefix}-{count:x}"
