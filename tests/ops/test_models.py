"""Names in the endpoints file against those of the engine behind an endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from epp.config.pool import EndpointSpec
from epp.config.schema import Config
from epp.ops.doctor.context import Answer, Context, Engine, Finding, Severity
from epp.ops.doctor.engines import models

LISTED = ("llama-3", "lora-sql")


def checked(*listed: str, **names: Any) -> list[Finding]:
    engine = Engine("a:1", EndpointSpec(address="a:1", **names), Answer(200, b""), listed)
    found = models(Context(config=Config(), engines=(engine,)))
    return [finding for finding in found if finding.severity is not Severity.NOTE]


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"models": ["llama-3"]},
        {"models": {"chat": "llama-3"}},
        {"models": {"chat": "llama-3"}, "adapters": {"sql": "lora-sql"}},
    ],
)
def test_names_that_the_engine_knows_are_fine(names: dict[str, Any]) -> None:
    assert checked(*LISTED, **names) == []


@pytest.mark.parametrize(
    ("names", "what", "fix"),
    [
        ({"models": ["chat"]}, "'chat'", "models: {chat: NAME}"),
        ({"models": {"chat": "llama-2"}}, "'llama-2'", "models: {chat: NAME}"),
        ({"models": ["llama-3"], "adapters": ["sql"]}, "'sql'", "adapters: {sql: NAME}"),
    ],
)
def test_a_name_that_the_engine_does_not_know_is_an_error_with_its_fix(
    names: dict[str, Any], what: str, fix: str
) -> None:
    [finding] = checked(*LISTED, **names)
    assert finding.severity is Severity.ERROR
    assert finding.what == f"a:1 does not serve {what}"
    assert fix in finding.fix
    assert "llama-3" in finding.fix
