"""Work only beside the picker that leads, where several share (`epp.server.lead`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from epp.errors import EppError
from epp.learn.sidecar.process import run_until_stopped
from epp.server.lead import LeadFile, is_led, read_lead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.config.schema import Config


class Work(Protocol):
    """What a sidecar does while its picker leads."""

    def tick(self) -> None:
        """Do one round."""

    def close(self) -> None:
        """Write the memory, and end."""

    def drop(self) -> None:
        """End without writing anything: another one leads."""


def lead_of(config: Config, records: Path) -> LeadFile:
    """Read whether the picker of this configuration leads; one that is alone always does."""
    return read_lead(records) if is_led(config) else LeadFile(leads=True)


def require_lead(config: Config, records: Path) -> None:
    """Refuse what only the leader's sidecar can do.

    Raises:
        EppError: another picker leads.
    """
    lead = lead_of(config, records)
    if not lead.leads:
        raise EppError(f"this picker does not lead, {lead.leader or 'nobody'} does: ask there")


class Turn:
    """Begins the work when the picker takes the lead, and ends it when another does.

    Args:
        begin: makes the work, from what is on file.
        lead: reads who leads.
        report: takes sentences for the log.
    """

    def __init__(
        self, begin: Callable[[], Work], lead: Callable[[], LeadFile], report: Callable[[str], None]
    ) -> None:
        self._begin, self._lead, self._report = begin, lead, report
        self._work: Work | None = None
        self._waits_for: str | None = None

    def run(self, every_s: float) -> None:
        """Look every so many seconds, and do the rounds of the work, until stopped."""
        self.look()
        run_until_stopped(self.tick, every_s)
        self.close()

    def look(self) -> None:
        """Begin or end the work.

        Raises:
            EppError: it cannot begin.
        """
        lead = self._lead()
        if not lead.leads:
            self.end()
            if lead.leader != self._waits_for:
                self._report(f"waiting: {lead.leader or 'nobody'} leads the pickers")
            self._waits_for = lead.leader
        elif self._work is None:
            if self._waits_for is not None:
                self._report(f"this picker leads, in term {lead.term}")
            self._waits_for = None
            self._work = self._begin()

    def tick(self) -> None:
        """Do one round, where there is work."""
        self.look()
        if self._work is not None:
            self._work.tick()

    def end(self) -> None:
        """End the work without writing anything."""
        work, self._work = self._work, None
        if work is not None:
            work.drop()

    def close(self) -> None:
        """End the work in order."""
        if not self._lead().leads:
            self.end()
        elif self._work is not None:
            self._work.close()
