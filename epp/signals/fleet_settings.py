"""What the fleet's stores are configured by: the shape of the configuration file's sections."""

from __future__ import annotations

from typing import Protocol


class Settings(Protocol):
    """What the stores are configured by; the shape of the configuration file's sections."""

    @property
    def scrape(self) -> ScrapeSettings:
        """Engine metrics."""
        ...

    @property
    def probe(self) -> ProbeSettings:
        """Probes."""
        ...


class ScrapeSettings(Protocol):
    """`stale_after_s`: age at which a value is unknown."""

    @property
    def stale_after_s(self) -> float: ...  # noqa: D102 - the class says it


class ProbeSettings(Protocol):
    """Ejection: its first length; see `HealthSettings`."""

    @property
    def interval_s(self) -> float: ...  # noqa: D102 - the class says it
    @property
    def eject_s(self) -> float: ...  # noqa: D102 - the class says it
