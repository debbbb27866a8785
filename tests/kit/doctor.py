"""The doctor as tests call it: a deployment examined, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.ops.doctor.checks import examine
from epp.ops.doctor.context import Context, Severity
from epp.ops.doctor.fetch import fetch_context

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.ops.doctor.checks import Check
    from epp.ops.doctor.context import Finding

    Found = list[tuple[Check, Finding]]


async def examined(
    config: Config, specs: dict[str, EndpointSpec], records: Path | None = None, **asked: Any
) -> Found:
    """Fetch and check what is to be asked, by fields of a context."""
    return examine(await fetch_context(Context(config=config, specs=specs, **asked), records)).found


def findings(found: Found, *areas: str) -> list[Finding]:
    """List what is to be done, in some areas or all."""
    return [
        finding
        for check, finding in found
        if finding.severity is not Severity.NOTE and check.area in (areas or (check.area,))
    ]


def said(found: Found, *areas: str) -> list[str]:
    """List what findings say."""
    return [finding.what for finding in findings(found, *areas)]


def noted(found: Found) -> list[str]:
    """List notes."""
    return [finding.what for _, finding in found if finding.severity is Severity.NOTE]
