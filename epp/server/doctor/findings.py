"""What a check says: findings, which ask for something to be done, and notes, which tell what was looked at.

Pure. A finding is said only of what was seen; what could not be looked at is a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """How bad."""

    ADVICE = 1  # works, and could be better
    WARNING = 2  # something is worse than it has to be
    ERROR = 3  # requests fail, or the picker does not decide what it is thought to


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be done.

    Attributes:
        severity: how bad.
        area: ``picker``, ``engine``, ``envoy``, ``clock``, ``network`` or ``traffic``.
        what: what was seen, one sentence.
        why: what it costs.
        fix: what to do.
    """

    severity: Severity
    area: str
    what: str
    why: str
    fix: str


@dataclass(slots=True)
class Report:
    """All that the checks say."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def error(self, area: str, what: str, why: str, fix: str) -> None:
        """Add an error."""
        self.findings.append(Finding(Severity.ERROR, area, what, why, fix))

    def warning(self, area: str, what: str, why: str, fix: str) -> None:
        """Add a warning."""
        self.findings.append(Finding(Severity.WARNING, area, what, why, fix))

    def advice(self, area: str, what: str, why: str, fix: str) -> None:
        """Add advice."""
        self.findings.append(Finding(Severity.ADVICE, area, what, why, fix))

    def note(self, area: str, text: str) -> None:
        """Tell what was looked at, or could not be."""
        self.notes.append((area, text))

    def ranked(self) -> list[Finding]:
        """Findings, the worst first."""
        return sorted(self.findings, key=lambda finding: -finding.severity)
