"""Hung pickers, dead replicas, names and addresses, endpoints that change: a real Envoy each."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.envoy.process import EnvoyProcess
from epp.types import Endpoint
from tests.envoy.conftest import Answer, ask
from tests.kit.certificates import self_signed
from tests.kit.envoy import Replica, ScriptedUpstream, require_envoy, settings
from tests.kit.extproc_server import ExtProcServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.envoy


@pytest.fixture(autouse=True)
def _binary() -> None:
    require_envoy()


async def test_dead_primary_is_retried_on_the_next_picked_and_ejected() -> None:
    async with (
        Replica() as dead,
        Replica() as second,
        Replica() as third,
        ExtProcServer() as picker,
    ):
        pool = [dead.endpoint, second.endpoint, third.endpoint]
        async with EnvoyProcess(settings(pool, picker.port, eject_s=60)) as envoy:
            await dead.stop()
            for backup in (second, third) * 3:
                picker.destination = f"{dead.address},{backup.address}"
                answer = await ask(envoy.listener_url)
                assert (answer.status, answer.served) == (200, backup.address)
            stats = await envoy.stats(r"cluster\.replicas\.outlier_detection\.ejections_active")
            assert list(stats.values()) == [1]
            # Without further picks the last resort is any other endpoint.
            picker.destination = dead.address
            assert (await ask(envoy.listener_url)).status == 200
            # Back, and chosen as soon as it is picked.
            await dead.start()
            assert (await ask(envoy.listener_url)).served == dead.address


async def test_hostname_and_ipv6_endpoints() -> None:
    async with Replica() as named, Replica(host="::1") as v6, ExtProcServer() as picker:
        pool = [Endpoint(f"localhost:{named.port}"), Endpoint(f"[0:0:0:0:0:0:0:1]:{v6.port}")]
        async with EnvoyProcess(settings(pool, picker.port)) as envoy:
            picker.destination = f"[::1]:{v6.port}"
            assert (await ask(envoy.listener_url)).served == v6.address
            picker.destination = f"127.0.0.1:{named.port}"
            assert (await ask(envoy.listener_url)).served == named.address
            # Envoy knows a name's addresses, not the name: such an answer is passed over.
            picker.destination = f"localhost:{named.port},[::1]:{v6.port}"
            assert (await ask(envoy.listener_url)).served == v6.address


def certificate(folder: Path) -> tuple[str, ssl.SSLContext]:
    names = "DNS:replica.test,IP:127.0.0.1"
    cert, key = self_signed(folder / "cert.pem", folder / "key.pem", "replica", alternatives=names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return str(cert), context


async def test_tls_endpoints_are_verified_by_name_or_address(tmp_path: Path) -> None:
    ca_file, context = certificate(tmp_path)
    async with (
        Replica(tls=context) as by_name,
        Replica(tls=context) as by_ip,
        Replica(tls=context) as wrong,
        Replica() as plain,
        ExtProcServer() as picker,
    ):
        pool = [
            Endpoint(by_name.address, tls=True, server_name="replica.test"),
            Endpoint(by_ip.address, tls=True),
            Endpoint(wrong.address, tls=True, server_name="other.test"),
            plain.endpoint,
        ]
        async with EnvoyProcess(settings(pool, picker.port, upstream_ca_file=ca_file)) as envoy:
            for replica in (by_name, by_ip, plain):
                picker.destination = replica.address
                assert (await ask(envoy.listener_url)).served == replica.address
            picker.destination = f"{wrong.address},{plain.address}"
            assert (await ask(envoy.listener_url)).served == plain.address
            assert not wrong.requests


async def until(envoy: EnvoyProcess, settled: Callable[[list[Answer]], bool]) -> None:
    """Ask until eight answers in a row look right: Envoy follows a file within moments, but when it likes."""
    async with asyncio.timeout(240):
        while True:
            if settled([await ask(envoy.listener_url) for _ in range(8)]):
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("health_check_path", ["", "/health"])
async def test_endpoints_file_is_followed_without_a_restart(tmp_path: Path, health_check_path: str) -> None:
    async with Replica() as old, Replica() as new, ExtProcServer() as picker:
        eds_path = str(tmp_path / "eds.json")
        chosen = settings([old.endpoint], picker.port, eds_path=eds_path, health_check_path=health_check_path)
        async with EnvoyProcess(chosen) as envoy:
            picker.destination = new.address
            assert (await ask(envoy.listener_url)).served == old.address
            envoy.write_endpoints([old.endpoint, new.endpoint])
            await until(envoy, lambda answers: answers[0].served == new.address)
            # A draining endpoint is out of the fallback's sight.
            envoy.write_endpoints([old.endpoint, Endpoint(new.address, draining=True)])
            picker.destination = ""
            await until(envoy, lambda answers: {answer.served for answer in answers} == {old.address})
            # One that has left is not picked either, though its health checks pass.
            picker.destination = new.address
            await until(envoy, lambda answers: {answer.served for answer in answers} == {new.address})
            envoy.write_endpoints([old.endpoint])
            await until(envoy, lambda answers: {answer.served for answer in answers} == {old.address})
            envoy.write_endpoints([])
            await until(envoy, lambda answers: answers[0].status == 503)


async def test_an_endpoint_with_tls_that_joins_the_file_is_verified_or_not_spoken_to(tmp_path: Path) -> None:
    ca_file, context = certificate(tmp_path)

    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with (
        Replica() as plain,
        Replica(tls=context) as named,
        ScriptedUpstream(answer) as clear,
        ExtProcServer() as picker,
    ):
        later = [
            Endpoint(named.address, tls=True, server_name="replica.test"),
            replace(clear.endpoint, tls=True),
        ]
        for number, ca in enumerate(("", ca_file)):
            eds_path = str(tmp_path / f"eds-{number}.json")
            chosen = settings([plain.endpoint], picker.port, eds_path=eds_path, upstream_ca_file=ca)
            async with EnvoyProcess(chosen) as envoy:
                envoy.write_endpoints([plain.endpoint, *later])
                async with asyncio.timeout(240):
                    while (await envoy.stats(r"replicas\.membership_total$")).popitem()[1] != 3:
                        await asyncio.sleep(0.02)
                picker.destination = f"{named.address},{plain.address}"
                assert (await ask(envoy.listener_url)).served == (named.address if ca else plain.address)
                picker.destination = f"{clear.endpoint.address},{plain.address}"
                assert (await ask(envoy.listener_url)).served == plain.address
        assert not clear.heads, "nothing was sent in the clear"
