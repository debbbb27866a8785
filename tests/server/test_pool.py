"""The pool at run time: taken whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.clock import ManualClock
from epp.config.load import parse_config
from epp.config.pool import EndpointSpec
from epp.ops.doctor.command import load
from epp.server import pool as pools
from epp.server.app import App
from epp.server.listed import ListedModel
from epp.server.poll import target_of
from tests.kit.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from epp.server.poll import Target

BEFORE = EndpointSpec("a.example:1", rtt_ms=5.0)


def in_force(app: App) -> dict[str, object]:
    """What each part takes for the pool."""
    feed = app._pool
    return {
        "fleet": [endpoint for _, endpoint in app.picker.fleet.members],
        "eligible": list(app.picker._eligibility._hosts),
        "size": feed.size,
        "pollers": dict(feed._pollers),
        "tasks": [name for name in app.tasks.names() if name.startswith("poll ")],
        "names": dict(app.core.resolver._names),
        "aliases": dict(app.core.resolver._aliases),
    }


def faulty(address: str, *given: Any) -> Target:
    """As a fault of ours in one entry."""
    if address == "c:1":
        raise OverflowError("nobody foresaw this")
    return target_of(address, *given)


@pytest.mark.parametrize(
    ("last", "aliases"),
    [
        (EndpointSpec("d:1", rtt_ms=1e9), {}),
        (EndpointSpec("c:1"), {}),
        (EndpointSpec("d"), {}),
        (EndpointSpec("d:1"), {"no address": "d:1"}),
    ],
    ids=["round trip", "fault", "address", "alias"],
)
async def test_a_pool_with_an_entry_that_cannot_be_taken_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: EndpointSpec, aliases: Mapping[str, str]
) -> None:
    app = App(parse_config("{}", "epp.yaml"), tmp_path, "epp.yaml", ManualClock())
    monkeypatch.setattr(pools, "target_of", faulty)
    try:
        app._pool.apply({BEFORE.address: BEFORE}, {"[fd00::1]:1": BEFORE.address})
        before = in_force(app)
        with pytest.raises((ValueError, OverflowError)):
            app._pool.apply({"b.example:1": EndpointSpec("b.example:1"), last.address: last}, aliases)
        assert in_force(app) == before
        app._pool.apply({"b.example:1": EndpointSpec("b.example:1")})
        assert in_force(app)["tasks"] == ["poll b.example:1"]
        assert app._pool.size == 1
    finally:
        await app.tasks.stop_all()


async def test_an_endpoint_of_which_no_names_are_asked_any_more_is_not_found_wrong(tmp_path: Path) -> None:
    app = App(parse_config("{}", "epp.yaml"), tmp_path, "epp.yaml", ManualClock())

    def mismatch() -> float | None:
        return shown(app.metrics, "epp_endpoint_model_mismatch", endpoint="a:1")

    try:
        app._pool.apply({"a:1": EndpointSpec("a:1", models=["chat"])})
        app._pool._sink.models_listed("a:1", frozenset({"chat"}), {"served": ListedModel()})
        app._pool.apply({"a:1": EndpointSpec("a:1", models=["chat"]), "b:1": EndpointSpec("b:1")})
        assert mismatch() == 1, "nothing has changed for it"
        app._pool.apply({"a:1": EndpointSpec("a:1")})
        assert mismatch() is None, "nobody would ever look again"
    finally:
        await app.tasks.stop_all()


async def test_credentials_lie_where_the_configuration_does(tmp_path: Path) -> None:
    text = "scrape: {ca_file: ca.pem, bearer_token_file: token}"
    app = App(parse_config(text, "epp.yaml"), tmp_path, "epp.yaml", ManualClock())
    pool = "endpoints: [{address: 'a:1'}, {address: 'b:1', ca_file: /etc/b.pem, bearer_token_file: b/token}]"
    try:
        app._pool.content(pool.encode())
        found = [(target.ca_file, target.bearer_token_file) for target in app._pool._pollers.values()]
    finally:
        await app.tasks.stop_all()
    assert found == [
        (str(tmp_path / "ca.pem"), str(tmp_path / "token")),
        ("/etc/b.pem", str(tmp_path / "b/token")),
    ]
    (tmp_path / "epp.yaml").write_text(text)
    (tmp_path / "endpoints.yaml").write_text(pool)
    config, specs = load(tmp_path / "epp.yaml")
    targets = [target_of(address, spec, config.scrape) for address, spec in specs.items()]
    assert [(target.ca_file, target.bearer_token_file) for target in targets] == found, (
        "as epp doctor sees them"
    )
