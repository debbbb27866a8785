"""The pool at run time: taken whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from epp.ops.doctor.command import load
from epp.server.poll import target_of
from tests.kit.apps import app_of
from tests.kit.waiting import until
from tests.server.test_poll import engine

if TYPE_CHECKING:
    from pathlib import Path


async def test_credentials_lie_where_the_configuration_does(tmp_path: Path) -> None:
    scrape = {"ca_file": "ca.pem", "bearer_token_file": "token"}
    app = app_of(tmp_path, scrape=scrape)
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
    (tmp_path / "epp.yaml").write_text(json.dumps({"scrape": scrape}))
    (tmp_path / "endpoints.yaml").write_text(pool)
    config, specs = load(tmp_path / "epp.yaml")
    targets = [target_of(address, spec, config.scrape) for address, spec in specs.items()]
    assert [(target.ca_file, target.bearer_token_file) for target in targets] == found, (
        "as epp doctor sees them"
    )


async def test_the_pool_reads_a_token_once_for_all_that_share_it_and_for_as_long_as_one_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("shared")
    headers: list[dict[str, str]] = []
    app = app_of(tmp_path)
    async with engine(headers=headers) as one, engine(headers=headers) as two:
        entries = [f"{{address: '{address}', bearer_token_file: token}}" for address in (one, two)]
        app._pool.content(f"endpoints: [{', '.join(entries)}]".encode())
        await until(lambda: len({sent["Host"] for sent in headers}) == 2)
        assert {sent.get("Authorization") for sent in headers} == {"Bearer shared"}
        reads = f"read {tmp_path / 'token'}"
        assert reads in app.tasks._tasks
        app._pool.content(f"endpoints: [{entries[0]}]".encode())
        assert reads in app.tasks._tasks
        app._pool.content(b"endpoints: []")
        assert reads not in app.tasks._tasks
        await app.tasks.stop_all()
