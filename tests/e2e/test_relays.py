"""A real picker before two tiers of real Envoys: what it learns of requests that relays hand on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest_asyncio

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings
from epp.records.schema import join
from epp_lab.sim.http import SimReplica
from tests.kit.envoy import require_envoy
from tests.kit.picker import CONFIG, PickerProcess
from tests.kit.records import recorded
from tests.kit.relays import certificates, relays
from tests.kit.replicas import CHAT, chat_body, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path


#: Binds a request to a region.
HEADER = "x-test-region"
NAMES = {"near": ("near-0",), "far": ("far-0", "far-1")}


@dataclass
class Tiers:
    """One replica near, two far away, a relay for either."""

    folder: Path
    replicas: dict[str, SimReplica]
    relay: dict[str, EnvoyProcess]
    envoy: EnvoyProcess
    http: aiohttp.ClientSession

    async def ask(self, region: str = "") -> tuple[int, str]:
        """Status, and the replica that answered or else what Envoy said."""
        headers = {HEADER: region} if region else {}
        async with self.http.post(
            self.envoy.listener_url + CHAT, json=chat_body("hello", max_tokens=2), headers=headers
        ) as answer:
            said = await answer.text()
            return answer.status, answer.headers.get("x-served-by", said)

    async def outcomes(self, count: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Picks and outcomes on record, once there are so many."""

        def done() -> list[tuple[str, Mapping[str, Any]]]:
            return [
                (request.decision["endpoints"][request.decision["chosen"]], request.outcome)
                for request in join(recorded(self.folder / "records"))
                if request.decision is not None and request.outcome is not None
            ]

        await until(lambda: len(done()) >= count)
        return done()


@pytest_asyncio.fixture
async def tiers(tmp_path: Path) -> AsyncIterator[Tiers]:
    require_envoy()
    certificates(tmp_path)
    known = relays(tmp_path, tuple(NAMES), connections=2)
    async with AsyncExitStack() as stack:
        replicas = {
            name: await stack.enter_async_context(SimReplica(quick_config(name)))
            for names in NAMES.values()
            for name in names
        }
        specs = [
            EndpointSpec(address=replicas[name].address, region=region)
            for region, names in NAMES.items()
            for name in names
        ]
        (tmp_path / "endpoints.yaml").write_bytes(dump_pool(specs))
        side = {"cert_file": str(tmp_path / "relay.crt"), "key_file": str(tmp_path / "relay.key")}
        local = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in specs),
            relays=msgspec.structs.replace(known, **side),
            admin_port=0,
        )
        running = {
            region: await stack.enter_async_context(
                EnvoyProcess(local, relay=region, folder=tmp_path / f"relay-{region}")
            )
            for region in NAMES
        }
        picker = PickerProcess(  # behind the relays: it probes through them
            tmp_path,
            relays=msgspec.to_builtins(known),
            policy={"name": "least-request"},
            probe={**CONFIG["probe"], "timeout_s": 10.0},  # a busy machine answers late
            regions=[{"allow": [region], "header": HEADER, "value": region} for region in NAMES],
        )
        stack.push_async_callback(picker.stop)
        await picker.start()
        settings = picker.envoy_settings(specs, relays=known, message_timeout_ms=10_000)
        envoy = await stack.enter_async_context(EnvoyProcess(settings, folder=tmp_path / "global"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Tiers(tmp_path, replicas, running, envoy, http)


async def test_outcomes_name_endpoints_and_not_relays(tiers: Tiers) -> None:
    for region, names in NAMES.items():
        for _ in range(3):
            status, served = await tiers.ask(region)
            assert status == 200
            assert served in names
    addresses = {replica.address: name for name, replica in tiers.replicas.items()}
    for picked, outcome in await tiers.outcomes(6):
        assert outcome["cause"] == "completed"
        assert outcome["served"] in addresses
        assert outcome["served"] == picked
        assert outcome["ttft_ms"] > 0


async def test_a_relay_that_falls_back_says_so_and_the_dead_endpoint_is_left_alone(tiers: Tiers) -> None:
    await tiers.replicas["far-1"].__aexit__(None, None, None)
    for _ in range(8):
        assert await tiers.ask("far") == (200, "far-0")
    alive, dead = tiers.replicas["far-0"].address, tiers.replicas["far-1"].address
    for picked, outcome in await tiers.outcomes(8):
        assert outcome["served"] == alive
        assert outcome["cause"] == ("completed" if picked == alive else "retried-elsewhere")
        assert picked in (alive, dead)


async def test_a_relay_retries_what_an_engine_of_its_region_refuses_and_passes_on_the_last(
    tiers: Tiers,
) -> None:
    tiers.replicas["far-0"].refusal = (429, 0)
    tiers.replicas["near-0"].refusal = (429, 0)
    assert {await tiers.ask("far") for _ in range(8)} == {(200, "far-1")}
    assert tiers.replicas["far-0"].requests > 0
    for picked, outcome in await tiers.outcomes(8):
        assert outcome["served"] == tiers.replicas["far-1"].address
        assert outcome["cause"] == ("completed" if picked == outcome["served"] else "retried-elsewhere")
    before = tiers.replicas["near-0"].requests
    assert (await tiers.ask("near"))[0] == 429
    assert tiers.replicas["near-0"].requests == before + 1
    assert tiers.replicas["far-1"].requests == 8
