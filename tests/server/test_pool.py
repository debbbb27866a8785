"""The pool at run time: taken whole or not at all, and the EDS file that Envoy reads it from."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import pytest_asyncio

from epp.config.pool import EndpointSpec
from epp.feeds import pool
from epp.feeds.poll import target_of
from epp.ops.doctor.command import load
from epp.signals.metrics_text import EngineSample
from epp.types import Role
from tests.kit.apps import app_of
from tests.kit.shown import shown
from tests.kit.waiting import until
from tests.server.test_poll import engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.server.app import App

A, B, NAME = "10.0.0.1:80", "10.0.0.2:80", "gpu.example:80"
LONG_S = 3600.0


class World:
    """A picker without listeners, and what is to be seen of its pool."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "eds.json"
        self.names: dict[str, str] = {}
        self._folder = folder
        self._apps: list[App] = []

    def picker(self, delay_s: float, *addresses: str, eds_file: str = "eds.json", **fields: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("epp.feeds.pool.EDS_DELAY_S", delay_s)
            self.app = app_of(self._folder, pool={"eds_file": eds_file}, probe={"interval_s": 0})
        self._apps.append(self.app)
        self.app.tasks.start("resolve", self.app.director.resolver.run())
        self.pool(*addresses, **fields)

    async def start(self, delay_s: float, *addresses: str, **fields: Any) -> None:
        self.picker(delay_s, *addresses, **fields)
        await self.app._pool.start()

    def pool(self, *addresses: str, **fields: Any) -> None:
        self.apply(*(EndpointSpec(address=address, **fields) for address in addresses))

    def apply(self, *specs: EndpointSpec) -> None:
        self.app._pool.apply({spec.address: spec for spec in specs})

    async def stop(self) -> None:
        for app in self._apps:
            await app.tasks.stop_all()

    def written(self) -> dict[str, dict[str, Any]]:
        """Hosts of the file by address; empty without a file."""
        if not self.file.exists():
            return {}
        (resource,) = json.loads(self.file.read_text())["resources"]
        hosts = resource["endpoints"][0]["lb_endpoints"]
        sockets = [host["endpoint"]["address"]["socket_address"] for host in hosts]
        names = [f"{socket['address']}:{socket['port_value']}" for socket in sockets]
        return dict(zip(names, hosts, strict=True))

    def eligible(self) -> set[str]:
        return {each.address for _, each in self.app.scheduler.datastore.members if not each.draining}


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(tmp_path)

    async def getaddrinfo(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        if host not in made.names:
            raise OSError("no such name")
        return [(0, 0, 0, "", (made.names[host], port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    yield made
    await made.stop()


@pytest.mark.parametrize(("delay_s", "later"), [(LONG_S, {A}), (0.0, {A, B})])
async def test_a_new_endpoint_is_picked_once_envoy_has_had_time_to_read_of_it(
    world: World, delay_s: float, later: set[str]
) -> None:
    await world.start(delay_s, A)
    assert world.eligible() == {A} == set(world.written()), "no Envoy can follow an older file"
    world.pool(A, B)
    assert world.eligible() == {A}
    await until(lambda: set(world.written()) == {A, B})
    await until(lambda: world.eligible() == later)
    world.pool(A)
    assert world.eligible() == {A}
    await until(lambda: set(world.written()) == {A})
    await until(lambda: not world.app._pool._eds.knows(B))  # type: ignore[union-attr]  # there is one
    world.pool(A, B)
    assert world.eligible() == {A}, "once more, after it had left"


async def test_a_new_endpoint_is_picked_at_once_where_no_other_serves_its_model(world: World) -> None:
    await world.start(LONG_S, A)
    world.pool(B)
    assert world.eligible() == {B}, "the whole pool is replaced"
    world.apply(EndpointSpec(address=A, draining=True), EndpointSpec(address=B))
    assert world.eligible() == {B}
    world.apply(EndpointSpec(address=A, models=["m"]), EndpointSpec(address=B, models=["n"]))
    assert world.eligible() == {A, B}
    world.apply(EndpointSpec(address=A, models=["m", "n"]), EndpointSpec(address=B, models=["n"]))
    assert world.eligible() == {A}


async def test_a_start_with_another_pool_than_envoy_follows_waits_until_it_has_read_this(
    world: World,
) -> None:
    await world.start(LONG_S, A)
    await world.start(LONG_S, A)  # the same: at once
    world.picker(LONG_S, B)
    start = asyncio.ensure_future(world.app._pool.start())
    await until(lambda: set(world.written()) == {B})
    await asyncio.sleep(0)
    assert not start.done()
    start.cancel()


async def test_a_file_that_cannot_be_written_is_told_once_and_hinders_no_pick(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "EDS_RETRY_S", 0.01)
    world.file = world.file.parent / "later" / "eds.json"

    def ok() -> float | None:
        return shown(world.app.metrics, "epp_file_ok", file="eds")

    await world.start(0.0, A, eds_file="later/eds.json")
    world.pool(A, B)
    await until(lambda: world.eligible() == {A, B})
    assert ok() == 0
    assert caplog.text.count("pool.eds_file: cannot write") == 1
    world.file.parent.mkdir()
    await until(lambda: ok() == 1)
    assert set(world.written()) == {A, B}


async def test_names_are_written_as_addresses_with_their_names_for_tls(world: World) -> None:
    world.names = {"gpu.example": "10.9.9.9"}
    await world.start(0.0, NAME, "lost.example:80", tls=True)
    (host,) = world.written().values()
    assert set(world.written()) == {"10.9.9.9:80"}, "what does not resolve is left out"
    assert host["endpoint"]["hostname"] == "gpu.example"
    assert host["metadata"]["filter_metadata"] == {"envoy.transport_socket_match": {"tls": "name"}}
    assert world.eligible() == {NAME}
    world.names = {"gpu.example": "10.9.9.10", "lost.example": "10.9.9.11"}
    for name in (NAME, "lost.example:80"):
        await world.app.director.resolver.resolve(name)
    await until(lambda: set(world.written()) == {"10.9.9.10:80", "10.9.9.11:80"})
    await until(lambda: world.eligible() == {NAME, "lost.example:80"})


async def test_credentials_lie_where_the_configuration_does(tmp_path: Path) -> None:
    scrape = {"ca_file": "ca.pem", "bearer_token_file": "token"}
    app = app_of(tmp_path, scrape=scrape)
    entries = (
        "endpoints: [{address: 'a:1'}, {address: 'b:1', ca_file: /etc/b.pem, bearer_token_file: b/token}]"
    )
    try:
        app._pool.content(entries.encode())
        found = [(target.ca_file, target.bearer_token_file) for target in app._pool._pollers.values()]
    finally:
        await app.tasks.stop_all()
    assert found == [
        (str(tmp_path / "ca.pem"), str(tmp_path / "token")),
        ("/etc/b.pem", str(tmp_path / "b/token")),
    ]
    (tmp_path / "epp.yaml").write_text(json.dumps({"scrape": scrape}))
    (tmp_path / "endpoints.yaml").write_text(entries)
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


async def test_an_engine_keeps_the_role_that_it_told_and_one_that_changes_nothing_is_no_news(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.picker(0.0, A)
    datastore = world.app.scheduler.datastore

    def role_after(told: str) -> frozenset[Role]:
        datastore.engine.update(datastore.slot_of(A) or 0, EngineSample(role=told), 0.0)
        return datastore.members[0][1].roles

    offer = Mock(side_effect=world.app.scheduler.set_pool)
    monkeypatch.setattr(world.app.scheduler, "set_pool", offer)
    assert (role_after("unified"), offer.call_count) == (frozenset(), 0)
    for told in ("decode", "", "decode"):
        assert (role_after(told), offer.call_count) == (frozenset({Role.DECODE}), 1)
