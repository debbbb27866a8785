"""The pool at run time: taken whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.load import parse_config
from epp.config.pool import EndpointSpec
from epp.ops.doctor.command import load
from epp.server.app import App
from epp.server.poll import target_of
from tests.kit.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


BEFORE = EndpointSpec("a.example:1", rtt_ms=5.0)


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
