"""The Envoy before all regions: nearest first, what is up, what rules allow. Real Envoys, regions without pickers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from epp.config.federation import DOMAIN, ENTRY_NAME, Federation
from epp.config.schema import RegionRule
from epp.envoy.entry import COORDINATES_HEADER, entry_eds
from epp.envoy.process import EnvoyProcess
from epp.envoy.render import write
from tests.envoy.conftest import ask
from tests.envoy.test_regions import FORGED
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.ports import free_ports
from tests.kit.relays import certificates, relays
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epp.envoy.settings import EnvoySettings

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

US, EU, ASIA, DOWN = "us-east", "eu-central", "ap-northeast", "me-south"
PLACES = {US: (39.0, -77.5), EU: (50.1, 8.7), ASIA: (35.7, 139.7), DOWN: (26.1, 50.6)}
RULES = (
    RegionRule(allow=[EU, DOWN], header="x-tenant", value="acme"),
    RegionRule(allow=[ASIA, EU], path_prefix="/v1/"),
    RegionRule(allow=[DOWN], header="x-tenant", value="gulf"),
    RegionRule(allow=[US], model="any"),
)


@dataclass
class World:
    engines: dict[str, Replica]
    settings: EnvoySettings
    envoy: EnvoyProcess

    async def region(self, place: str = "", **headers: str) -> str:
        """Which region serves a user at that place; the status where none does."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()} | FORGED
        if place:
            sent[COORDINATES_HEADER] = place
        answer = await ask(self.envoy.listener_url, headers=sent)
        names = {engine.address: name for name, engine in self.engines.items()}
        return names[answer.served] if answer.served else str(answer.status)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    require_envoy()
    names = {region: f"{region}.{DOMAIN}" for region in PLACES} | {"entry": ENTRY_NAME}
    folder = certificates(tmp_path_factory.mktemp("entry"), names)
    known = relays(folder, list(PLACES), who="entry")

    def seen_by(name: str, **changes: Any) -> EnvoySettings:
        own = msgspec.structs.replace(
            known, cert_file=str(folder / f"{name}.crt"), key_file=str(folder / f"{name}.key")
        )
        engine = engines.get(name)
        chosen = settings(
            [engine.endpoint] if engine else [], free_ports(), relays=own, observe=False, eject_s=0.1
        )
        region = "" if name == "entry" else name
        federation = Federation(region=region, forward_port=free_ports(len(PLACES)), coordinates=PLACES)
        return replace(chosen, federation=federation, **changes)

    async with AsyncExitStack() as stack:
        engines = {region: await stack.enter_async_context(Replica()) for region in PLACES if region != DOWN}
        for region in engines:
            await stack.enter_async_context(EnvoyProcess(seen_by(region), folder=folder / region))
        chosen = seen_by("entry", region_rules=RULES, eds_path=str(folder / "eds.json"))
        write(folder / "eds.json", entry_eds(chosen, [DOWN, EU, ASIA, US]).decode())
        envoy = await stack.enter_async_context(EnvoyProcess(chosen, folder=folder / "entry"))
        made = World(engines, chosen, envoy)
        for region in (EU, ASIA):
            await until(partial(reached, made, "{},{}".format(*PLACES[region]), region))
        yield made


async def reached(world: World, place: str, region: str) -> bool:
    return await world.region(place) == region


@pytest.mark.parametrize(
    ("place", "region"),
    [
        ("48.9, 2.4", EU),
        ("-33.9,151.2", ASIA),
        ("37.8,-179.9", ASIA),  # across the date line
        ("25.2,55.3", EU),  # nearest is one that is down
    ],
)
async def test_the_nearest_region_that_is_up_serves(world: World, place: str, region: str) -> None:
    assert await world.region(place) == region
    assert not {COORDINATES_HEADER, *FORGED} & world.engines[region].headers[-1].keys()


@pytest.mark.parametrize(
    "place", ["", "nowhere", "1,2,3", "91,0", "0,181", "1e1,2", "nan,nan", "--1,2", "1.2.3,4"]
)
async def test_without_coordinates_on_earth_the_order_is_the_file_s(world: World, place: str) -> None:
    assert await world.region(place) == EU


async def test_a_new_order_needs_no_restart(world: World) -> None:
    eds = Path(world.settings.eds_path)
    for order, first in (([ASIA, DOWN, US, EU], ASIA), ([DOWN, EU, US, ASIA], EU)):
        write(eds, entry_eds(world.settings, order).decode())
        await until(partial(reached, world, "", first))


async def test_rules_bind_before_distance_and_all_of_them(world: World) -> None:
    everywhere = [f"{latitude},{longitude}" for latitude, longitude in PLACES.values()] + [""]
    for place in everywhere:
        assert await world.region(place) in (EU, ASIA)
        assert await world.region(place, x_tenant="acme") == EU
        assert await world.region(place, x_tenant="gulf") == "503", (
            "what two rules allow has nothing in common"
        )


async def test_a_region_without_an_engine_hands_over_within_the_rules(world: World) -> None:
    await world.engines[EU].stop()
    try:
        seen = len(world.engines[US].requests)
        for place in ("", "50,8", "39,-77"):
            assert await world.region(place) == ASIA
            assert await world.region(place, x_tenant="acme") == "503"
        assert len(world.engines[US].requests) == seen
    finally:
        await world.engines[EU].start()
