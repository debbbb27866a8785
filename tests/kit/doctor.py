"""The doctor as tests call it: a deployment examined, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.server.doctor.checks import examine
from epp.server.doctor.fetch import fetch_context

if TYPE_CHECKING:
    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.server.doctor.checks import Found, Report


async def examined(
    config: Config, specs: dict[str, EndpointSpec], *, picker: str = "", **options: Any
) -> Report:
    """Fetch and check; options are those of `fetch_context`."""
    return examine(await fetch_context(config, specs, picker=picker, **options))


def said(found: list[Found], *areas: str) -> list[str]:
    """List what findings, or notes, of some areas say; of all without any."""
    return [finding.what for check, finding in found if check.area in (areas or (check.area,))]
