"""Check of the names under which an endpoint is asked for its models: its engine must know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.server.doctor.fetch import ask_endpoint
from epp.server.listed import parse_models

if TYPE_CHECKING:
    import aiohttp

    from epp.config.pool import EndpointSpec
    from epp.server.doctor.findings import Report
    from epp.server.poll import Target

_NAMED = 5
"""How many of an engine's own names a finding lists."""


async def listed_models(http: aiohttp.ClientSession, target: Target) -> list[str]:
    """What an engine says it serves; empty when it does not say."""
    answer = await ask_endpoint(http, target, "/v1/models")
    return sorted(parse_models(answer.body))


def check_models(report: Report, address: str, spec: EndpointSpec, listed: list[str]) -> None:
    """Hold the endpoint's names against those of its engine, which would answer 404 to others."""
    endpoint = spec.endpoint()
    if not endpoint.models or not listed:
        return
    unknown = sorted(name for name in endpoint.models if endpoint.served_name(name) not in listed)
    if not unknown:
        report.note("engine", f"{address} serves {', '.join(sorted(endpoint.models))}")
        return
    key = "adapters" if unknown[0] in endpoint.adapters else "models"
    report.error(
        "engine",
        f"{address} does not serve {', '.join(repr(endpoint.served_name(name)) for name in unknown)}",
        f"requests for {', '.join(unknown)} that go there fail",
        f"in the endpoints file, map the public name to the engine's: {key}: {{{unknown[0]}: NAME}}, NAME "
        f"being one of {', '.join(listed[:_NAMED])}",
    )
