"""The parameters of one plugin, taken one by one; what nobody took is an error.

Owns how a wrong parameter is told. Pure.
"""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any

from epp.errors import ConfigError
from epp.llmd import values

if TYPE_CHECKING:
    from collections.abc import Mapping


class Parameters:
    """Parameters of a plugin.

    Args:
        given: as the file has them.
        plugin: the plugin's type.
        source: the file, for errors.
        key: dotted path of the parameters, for errors.
        warnings: sentences are added here.
    """

    def __init__(
        self, given: Mapping[str, Any], plugin: str, source: str, key: str, warnings: list[str]
    ) -> None:
        self._given, self._plugin, self._source, self._key = given, plugin, source, key
        self._warnings = warnings
        self._known: set[str] = set()

    def number(self, name: str, default: float, *, low: float, high: float = sys.float_info.max) -> float:
        """A number within bounds, which is finite."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._error(name, f"{value!r} is not a number of at least {low:g}")
        return value

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self._error(name, f"{value!r} is not text")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._error(name, f"{value!r} is not true or false")
        return value

    def duration_s(self, name: str) -> float:
        """A Go duration in seconds, 0 when not given."""
        text = self.text(name, "0")
        try:
            return values.duration_s(text)
        except ValueError as error:
            raise self._error(name, str(error)) from None

    def noted(self, name: str, means: str) -> None:
        """A parameter whose value changes nothing; what it means here is said when it is given."""
        if self._take(name, None) is not None:
            self.say(name, means)

    def refused(self, name: str, why: str, fix: str) -> None:
        """A parameter that cannot be honoured."""
        if self._take(name, None) is not None:
            raise self._error(name, why, fix)

    def say(self, name: str, means: str) -> None:
        """Warn of what a parameter means here."""
        self._warnings.append(f"{self._plugin} {name}: {means}")

    def warn(self, means: str) -> None:
        """Warn of what the plugin means."""
        self._warnings.append(f"{self._plugin}: {means}")

    def done(self) -> None:
        """All was taken.

        Raises:
            ConfigError: naming what was not.
        """
        for name in self._given:
            if name not in self._known:
                near = difflib.get_close_matches(name, sorted(self._known), n=1, cutoff=0.5)
                known = ", ".join(sorted(self._known)) or "it has none"
                fix = f"did you mean {near[0]!r}?" if near else f"known parameters: {known}"
                raise self._error(name, "unknown parameter", fix)

    def _take(self, name: str, default: Any) -> Any:
        self._known.add(name)
        return self._given.get(name, default)

    def _error(self, name: str, problem: str, fix: str = "") -> ConfigError:
        return ConfigError(self._source, f"{self._key}.{name}", f"{self._plugin}: {problem}", fix)
