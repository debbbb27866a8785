"""Two tiers of real Envoys on loopback: who is believed, where requests go, what is told of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from epp.envoy.process import EnvoyProcess
from epp.types import Endpoint
from tests.envoy.conftest import Answer, ask
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.extproc_server import ExtProcServer
from tests.kit.relays import certificates, relays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.config.relays import Relays
    from epp.envoy.settings import EnvoySettings

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

NEAR, FAR = "near", "far"
SERVED = "x-gateway-destination-endpoint-served"


@dataclass
class Tiers:
    """Two regions of two replicas each, a relay in each, the global Envoy and its picker."""

    picker: ExtProcServer
    replicas: dict[str, list[Replica]]
    relays: Relays
    settings: EnvoySettings
    relay: dict[str, EnvoyProcess]
    envoy: EnvoyProcess
    folder: Path
    stack: AsyncExitStack

    async def ask(self, *, body: bytes = b"{}", headers: dict[str, str] | None = None) -> Answer:
        return await ask(self.envoy.listener_url, body=body, headers=headers)

    def pick(self, *replicas: Replica, through: tuple[str, ...]) -> None:
        """What the picker answers from now on."""
        self.picker.destination = ",".join(replica.address for replica in replicas)
        self.picker.relays = ",".join(self.relays.addresses(region)[0] for region in through)

    async def recovered(self, region: str) -> None:
        """Wait until a pick of that region is served there, and none of its endpoints is ejected any more."""
        for replica in self.replicas[region]:
            self.pick(replica, through=(region,))
            async with asyncio.timeout(240):
                while (await self.ask()).served != replica.address:
                    await asyncio.sleep(0.1)
        # Picks go to ejected endpoints, too.
        ejected = "cluster.replicas.outlier_detection.ejections_active"
        async with asyncio.timeout(240):
            while any((await self.relay[region].stats(ejected)).values()):
                await asyncio.sleep(0.1)

    async def logged(self, field: str, value: str | int) -> dict[str, Any]:
        """The global Envoy's access-log line with that in it, once it is written."""
        async with asyncio.timeout(240):
            while True:
                lines = self.envoy.log_file.read_text().splitlines()
                entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
                for entry in entries:
                    if entry[field] == value:
                        return dict(entry)
                await asyncio.sleep(0.05)


def as_seen_by(relays: Relays, who: str, folder: Path) -> Relays:
    """The same relays with another side's certificate."""
    cert, key = str(folder / f"{who}.crt"), str(folder / f"{who}.key")
    return msgspec.structs.replace(relays, cert_file=cert, key_file=key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tiers]:
    require_envoy()
    folder = certificates(tmp_path_factory.mktemp("two-tiers"))
    async with AsyncExitStack() as stack:
        replicas = {
            region: [await stack.enter_async_context(Replica()) for _ in range(2)] for region in (NEAR, FAR)
        }
        picker = await stack.enter_async_context(ExtProcServer())
        known = relays(folder, (NEAR, FAR))
        chosen = settings(
            [Endpoint(replica.address, region=region) for region in replicas for replica in replicas[region]],
            picker.port,
            relays=known,
            endpoint_header=True,
            access_log=True,
            eject_s=1,
        )
        local = replace(chosen, relays=as_seen_by(known, "relay", folder), access_log=False)
        running = {
            region: await stack.enter_async_context(EnvoyProcess(local, relay=region, folder=folder / region))
            for region in (NEAR, FAR)
        }
        envoy = await stack.enter_async_context(EnvoyProcess(chosen, folder=folder / "global"))
        yield Tiers(picker, replicas, known, local, running, envoy, folder, stack)


async def test_a_pick_is_served_by_the_endpoint_picked(tiers: Tiers) -> None:
    for region in (NEAR, FAR):
        for replica in tiers.replicas[region]:
            tiers.pick(replica, through=(region,))
            answer = await tiers.ask(body=b"x" * 300_000)
            assert (answer.status, answer.served, answer.body_bytes) == (200, replica.address, 300_000)
            assert "x-gateway-destination-endpoint" not in replica.headers[-1]


async def test_the_endpoint_served_is_told_to_the_picker_and_not_to_clients(tiers: Tiers) -> None:
    replica = tiers.replicas[FAR][0]
    tiers.pick(replica, through=(FAR,))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{tiers.envoy.listener_url}/v1/completions", data=b"{}") as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-epp-endpoint"] == replica.address
        assert not [name for name in answer.headers if name.lower().startswith(("x-gateway", "x-epp-relay"))]
    entry = await tiers.logged("path", "/v1/completions")
    assert entry["served"] == replica.address
    assert entry["upstream"] == tiers.relays.addresses(FAR)[0]


async def test_a_region_without_a_live_endpoint_hands_over_to_the_next(tiers: Tiers) -> None:
    near = tiers.replicas[NEAR][1]
    for replica in tiers.replicas[FAR]:
        await replica.stop()
    try:
        tiers.pick(tiers.replicas[FAR][0], near, through=(FAR, NEAR))
        answer = await tiers.ask()
    finally:
        for replica in tiers.replicas[FAR]:
            await replica.start()
    assert (answer.status, answer.served) == (200, near.address)
    await tiers.recovered(FAR)


async def test_a_client_cannot_choose(tiers: Tiers) -> None:
    first, second = tiers.replicas[NEAR]
    tiers.pick(first, through=(NEAR,))
    forged = {"x-gateway-destination-endpoint": second.address, SERVED: second.address}
    assert (await tiers.ask(headers=forged)).served == first.address


async def knock(tiers: Tiers, context: ssl.SSLContext | None) -> None:
    """Ask a relay directly; which endpoint, says the header that it believes its peer."""
    scheme = "https" if context else "http"
    url = f"{scheme}://{tiers.relays.addresses(NEAR)[0]}/v1/models"
    header = {"x-gateway-destination-endpoint": tiers.replicas[NEAR][0].address}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=header, ssl=context or False) as answer,
    ):
        await answer.read()


def client(certificate: Path | None) -> ssl.SSLContext:
    """A client that checks nothing itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


@pytest.mark.parametrize("who", ["plaintext", "no certificate", "stranger", "relay"])
async def test_a_relay_refuses_whoever_is_not_the_global_envoy(tiers: Tiers, who: str) -> None:
    """Also one whose certificate is signed by the same authority, and another region's relay."""
    before = sum(len(replica.requests) for replica in tiers.replicas[NEAR])
    certificate = tiers.folder / f"{who}.crt" if who in ("stranger", "relay") else None
    context = None if who == "plaintext" else client(certificate)
    with pytest.raises(aiohttp.ClientError):
        await knock(tiers, context)
    assert sum(len(replica.requests) for replica in tiers.replicas[NEAR]) == before


async def test_a_relay_killed_and_back(tiers: Tiers) -> None:
    """Requests for its region go to another meanwhile, none fails that had not begun, and it is used again."""
    near, far = tiers.replicas[NEAR][0], tiers.replicas[FAR][0]
    tiers.pick(near, far, through=(NEAR, FAR))
    await tiers.relay[NEAR].__aexit__()
    for _ in range(5):
        answer = await tiers.ask()
        assert (answer.status, answer.served) == (200, far.address)
    again = EnvoyProcess(tiers.settings, relay=NEAR, folder=tiers.folder / "near-again")
    tiers.relay[NEAR] = await tiers.stack.enter_async_context(again)
    await tiers.recovered(NEAR)
