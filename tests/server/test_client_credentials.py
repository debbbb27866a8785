"""Tokens and certificates with which endpoints are asked, in files that come late, change or are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.load import parse_config
from epp.config.pool import EndpointSpec
from epp.server.app import App
from epp.server.files import replace_file
from epp.server.process import SystemClock
from tests.kit import certificates
from tests.kit.waiting import until
from tests.server.test_poll import engine, polling

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_endpoint_s_own_token_goes_before_the_common_one(tmp_path: Path) -> None:
    common, own = tmp_path / "common", tmp_path / "own"
    common.write_text("everyone\n")
    own.write_text("mine\n")
    for spec_file, expected in (("", "Bearer everyone"), (str(own), "Bearer mine")):
        headers: list[dict[str, str]] = []
        async with engine(headers=headers) as address:
            spec = EndpointSpec(address=address, bearer_token_file=spec_file)
            async with polling(address, spec, bearer_token_file=str(common)) as seen:
                await seen.until("rtts", 1)
        assert {sent.get("authorization", sent.get("Authorization")) for sent in headers} == {expected}


async def test_certificates_that_are_not_there_are_a_failure_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    spec = EndpointSpec(address="127.0.0.1:1", tls=True, ca_file=str(path))
    async with polling(spec.address, spec) as seen:
        await seen.until("failures", 2)
        await seen.until("scrape_failures", 2)
        assert f"ca_file {path}: No such file" in seen.failures[0]
        certificates.self_signed(path, tmp_path / "key.pem", "127.0.0.1")
        await until(lambda: "Cannot connect" in seen.failures[-1])


async def test_a_token_that_rotates_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    headers: list[dict[str, str]] = []
    async with engine(headers=headers) as address:
        spec = EndpointSpec(address=address, bearer_token_file=str(path))
        async with polling(address, spec) as seen:
            await seen.until("rtts", 1)
            replace_file(path, b"two ")
            await until(lambda: headers[-1]["Authorization"] == "Bearer two")
    assert headers[0]["Authorization"] == "Bearer one"


async def test_the_pool_reads_a_token_once_for_all_that_share_it_and_for_as_long_as_one_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("shared")
    headers: list[dict[str, str]] = []
    app = App(parse_config("{}", "epp.yaml"), tmp_path, "epp.yaml", SystemClock())
    async with engine(headers=headers) as one, engine(headers=headers) as two:
        entries = [f"{{address: '{address}', bearer_token_file: token}}" for address in (one, two)]
        app._pool.content(f"endpoints: [{', '.join(entries)}]".encode())
        await until(lambda: len({sent["Host"] for sent in headers}) == 2)
        assert {sent.get("Authorization") for sent in headers} == {"Bearer shared"}
        reads = f"read {tmp_path / 'token'}"
        assert app.tasks.names().count(reads) == 1
        app._pool.content(f"endpoints: [{entries[0]}]".encode())
        assert reads in app.tasks.names()
        app._pool.content(b"endpoints: []")
        assert reads not in app.tasks.names()
        await app.tasks.stop_all()
