"""Regions as peers on loopback, a real Envoy in each: what leaves a region, who may enter, what is told of it."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from epp.config.federation import (
    AWAY_KEY,
    DOMAIN,
    ENTRY_NAME,
    FORWARD_HEADER,
    HOP_HEADER,
    PEER_HEADER,
    Federation,
)
from epp.config.relays import UNSERVED_HEADER
from epp.config.schema import RegionRule
from epp.envoy import messages
from epp.envoy.process import EnvoyProcess
from tests.envoy.conftest import Answer, ask
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.ports import free_ports
from tests.kit.relays import certificates, relays
from tests.kit.waiting import until
from tests.observe.conftest import ObservedPicker, Told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.envoy.settings import EnvoySettings

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

US, EU, DOWN = "us", "eu", "ap"
"""The last has an address, and nobody there."""
TOKEN = "signed-by-the-picker"
FORGED = {HOP_HEADER: "forged", FORWARD_HEADER: f"{EU},{DOWN}", PEER_HEADER: f"{EU}.{DOMAIN}"}
RULES = (
    RegionRule(allow=[EU], header="X-Tenant", value="acme"),
    RegionRule(allow=[EU], path_prefix="/eu/"),
    RegionRule(allow=[EU, DOWN], model="eu-*", path_prefix="/models/"),
)
BOUND: tuple[tuple[str, dict[str, str]], ...] = (
    ("/v1/completions", {"x-tenant": "acme"}),
    ("/eu/v1/completions", {}),
    ("/models/v1/completions", {}),
)


@dataclass
class Region:
    """One region: two engines, its picker and its Envoy."""

    settings: EnvoySettings
    picker: ObservedPicker
    told: Told
    engines: list[Replica]
    envoy: EnvoyProcess

    def seen(self) -> int:
        """Requests that an engine here has had."""
        return sum(len(engine.requests) for engine in self.engines)


@dataclass
class World:
    """Both regions, and what the tests do to them."""

    regions: dict[str, Region]
    folder: Path

    @property
    def us(self) -> Region:
        return self.regions[US]

    @property
    def eu(self) -> Region:
        return self.regions[EU]

    def pick(self, *destinations: str, to: str = "", at: str = US, away: bool = False) -> None:
        """What a region's picker answers from now on: regions or addresses, and the regions allowed by header."""
        region = self.regions[at]
        forwards = region.settings.forwards
        region.picker.destination = ",".join(forwards.get(each, each) for each in destinations)
        region.picker.sets = {HOP_HEADER: TOKEN, FORWARD_HEADER: to} if to else {}
        region.picker.says = {AWAY_KEY: "true"} if away else {}

    async def ask(
        self, path: str = "/v1/completions", headers: dict[str, str] | None = None, body: bytes = b"{}"
    ) -> Answer:
        """A client's request in the first region."""
        return await send(f"{self.us.envoy.listener_url}{path}", headers, body=body)


async def send(
    url: str, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None, body: bytes = b"{}"
) -> Answer:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=240)) as session,
        session.post(url, data=body, headers=headers, ssl=tls or False) as response,
    ):
        answer = await response.read()
        assert UNSERVED_HEADER not in response.headers or tls
        told = msgspec.json.decode(answer) if response.status == 200 else {"served": "", "body_bytes": 0}
        return Answer(response.status, **told)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    require_envoy()
    names = {region: f"{region}.{DOMAIN}" for region in (US, EU, DOWN)} | {"entry": ENTRY_NAME}
    folder = certificates(tmp_path_factory.mktemp("regions"), names)
    async with AsyncExitStack() as stack:
        known = relays(folder, (US, EU, DOWN), compression="gzip")
        regions = {}
        for name in (US, EU):
            engines = [await stack.enter_async_context(Replica()) for _ in range(2)]
            told = Told()
            picker = await stack.enter_async_context(ObservedPicker(told))
            own = msgspec.structs.replace(
                known, cert_file=str(folder / f"{name}.crt"), key_file=str(folder / f"{name}.key")
            )
            chosen = settings(
                [engine.endpoint for engine in engines],
                picker.port,
                relays=own,
                federation=Federation(region=name, forward_port=free_ports(3)),
                region_rules=RULES,
                message_timeout_ms=5000,
                report_interval_ms=20,
                first_token_port=picker.first_token_port,
                eds_path=str(folder / "us.json") if name == US else "",
                eject_s=0.1,
            )
            envoy = await stack.enter_async_context(EnvoyProcess(chosen, folder=folder / name))
            regions[name] = Region(chosen, picker, told, engines, envoy)
        made = World(regions, folder)
        made.pick(made.eu.engines[0].address, at=EU)
        made.pick(EU, to=EU)
        await until(lambda: reaches(made))
        yield made


async def reaches(world: World) -> bool:
    """Whether the way between the regions is open: health checks have found each other."""
    return (await world.ask()).served == world.eu.engines[0].address


@pytest.fixture(autouse=True)
def _as_new(world: World) -> None:
    world.pick(world.eu.engines[0].address, at=EU)
    world.pick(EU, to=EU)


async def test_a_forward_is_decided_anew_by_the_peer_and_its_headers_end_there(world: World) -> None:
    engine = world.eu.engines[1]
    world.pick(engine.address, at=EU)
    world.pick(EU, world.us.engines[0].address, to=EU)
    body = b"x" * 20_000
    answer = await world.ask(headers={**FORGED, "content-type": "application/json"}, body=body)
    assert (answer.served, answer.body_bytes) == (engine.address, len(body))
    assert world.eu.picker.body_bytes[-1] == len(body), "it reads a body that crossed compressed"
    asked = world.eu.picker.headers[-1]
    assert (asked[HOP_HEADER], asked[PEER_HEADER]) == (TOKEN, f"{US}.{DOMAIN}")
    assert FORWARD_HEADER not in asked
    assert asked["x-request-id"] == world.us.picker.headers[-1]["x-request-id"]
    assert not FORGED.keys() & engine.headers[-1].keys()


async def test_what_nobody_of_the_pick_serves_stays_and_takes_no_token_along(world: World) -> None:
    """The first is not there, the second's picker refuses, the third is an engine here."""
    engine = world.us.engines[0]
    world.pick(at=EU)
    world.pick(DOWN, EU, engine.address, to=f"{DOWN},{EU}")
    before = world.eu.seen()
    assert (await world.ask()).served == engine.address
    assert not FORGED.keys() & engine.headers[-1].keys()
    assert world.eu.seen() == before


@pytest.mark.parametrize("to", ["", DOWN, f"{DOWN},not-{EU},{EU}-2"])
async def test_nothing_leaves_for_a_region_that_the_picker_has_not_allowed(world: World, to: str) -> None:
    """Whatever a client says, and also where a port is taken for another region's."""
    asked = len(world.eu.picker.headers)
    world.pick(EU, to=to, away=True)
    assert (await world.ask(headers=FORGED)).status == 503
    engines = {engine.address for engine in world.us.engines}
    for destinations in ((EU, world.us.engines[0].address), (EU,)):
        world.pick(*destinations, to=to)
        assert (await world.ask(headers=FORGED)).served in engines
    assert len(world.eu.picker.headers) == asked


async def test_envoy_by_itself_takes_engines_alone(world: World) -> None:
    """Also with all but one gone, and after the EDS file has changed."""
    world.pick(EU)
    world.us.picker.destination = ""
    await world.us.engines[0].stop()
    try:
        for _ in range(20):
            assert (await world.ask()).served == world.us.engines[1].address
    finally:
        await world.us.engines[0].start()
    world.us.envoy.write_endpoints([world.us.engines[0].endpoint])
    found = r"cluster\.replicas\.membership_total$"

    async def followed() -> bool:
        return (await world.us.envoy.stats(found)).popitem()[1] == 3

    await until(followed)
    assert (await world.ask()).served == world.us.engines[0].address
    world.pick(EU, to=EU)
    assert (await world.ask()).served == world.eu.engines[0].address
    world.us.envoy.write_endpoints(world.us.settings.endpoints)


@pytest.mark.parametrize("fault", ["dead", "hung", "undecided"])
async def test_without_a_pick_bound_requests_end_here_and_others_are_served(world: World, fault: str) -> None:
    picker, before = world.us.picker, world.eu.seen()
    world.pick(to=f"{EU},{DOWN}")
    if fault == "dead":
        await picker.stop()
    elif fault == "hung":
        picker.going.clear()
    try:
        here = world.us.seen()
        asked = (world.ask(path, {**headers, **FORGED}) for path, headers in BOUND)
        assert {answer.status for answer in await asyncio.gather(*asked)} == {503}
        assert (world.us.seen(), world.eu.seen()) == (here, before)
        assert (await world.ask(headers=FORGED)).status == 200
        assert world.eu.seen() == before
    finally:
        picker.going.set()
        if fault == "dead":
            await picker.start()


async def test_a_bound_request_goes_away_or_nowhere(world: World) -> None:
    world.pick(EU, to=EU, away=True)
    for path, headers in BOUND:
        assert (await world.ask(path, headers)).served == world.eu.engines[0].address
    here = world.us.seen()
    world.pick(at=EU)
    for path, headers in BOUND:
        assert (await world.ask(path, headers)).status == 503
    assert world.us.seen() == here


async def test_a_pick_that_leads_away_does_not_stay_for_a_port_that_envoy_has_not(world: World) -> None:
    """The picker was started with other regions than its Envoy, and no rule that Envoy knows binds but a model's."""
    elsewhere = f"127.0.0.1:{free_ports()}"
    here = world.us.seen()
    for path in ("/models/v1/completions", "/v1/completions"):
        for picked in ((elsewhere,), (elsewhere, EU)):
            world.pick(*picked, to=EU, away=True)
            assert (await world.ask(path)).served == world.eu.engines[0].address
        world.pick(elsewhere, to=DOWN, away=True)
        assert (await world.ask(path)).status == 503
    assert world.us.seen() == here


def certified(world: World, who: str) -> ssl.SSLContext:
    """A client that checks nothing itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if who:
        context.load_cert_chain(world.folder / f"{who}.crt", world.folder / f"{who}.key")
    return context


@pytest.mark.parametrize("who", ["plaintext", "", "stranger", "entry", EU])
async def test_a_region_refuses_who_is_no_peer(world: World, who: str) -> None:
    """Also its own certificate, and the entry's on the peers' side."""
    address = world.eu.settings.relays.addresses(EU)[0] if world.eu.settings.relays else ""
    asked, before = len(world.eu.picker.headers), world.eu.seen()
    url = f"{'http' if who == 'plaintext' else 'https'}://{address}/v1/completions"
    with pytest.raises(aiohttp.ClientError):
        await send(url, FORGED, None if who == "plaintext" else certified(world, who))
    assert (len(world.eu.picker.headers), world.eu.seen()) == (asked, before)


async def test_who_does_not_say_who_it_is_is_cut_off(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection for peers lives for ever, so it has to become one."""
    monkeypatch.setattr(messages, "HANDSHAKE_S", 0.3)
    own = world.us.settings.relays
    assert own is not None
    moved = msgspec.structs.replace(own, regions={**own.regions, US: f"127.0.0.1:{free_ports(2)}"})
    federation = Federation(region=US, forward_port=free_ports(3))
    chosen = replace(world.us.settings, relays=moved, federation=federation, eds_path="")
    outgoing = ssl.MemoryBIO()
    greeting = certified(world, EU).wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        greeting.do_handshake()
    async with EnvoyProcess(chosen, folder=tmp_path), asyncio.timeout(240):
        host, port = moved.addresses(US)[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(outgoing.read())
        assert await reader.read(), "Envoy shows who it is"
        await reader.read()
        writer.close()


async def test_a_peer_is_who_its_certificate_says(world: World) -> None:
    address = world.eu.settings.relays.addresses(EU)[1] if world.eu.settings.relays else ""
    answer = await send(
        f"https://{address}/v1/completions", {**FORGED, PEER_HEADER: f"{US}.{DOMAIN}"}, certified(world, DOWN)
    )
    assert answer.status == 200
    assert world.eu.picker.headers[-1][PEER_HEADER] == f"{DOWN}.{DOMAIN}"
    world.pick(at=EU)
    before = world.eu.seen()
    assert (await send(f"https://{address}/v1/completions", FORGED, certified(world, DOWN))).status == 503
    assert world.eu.seen() == before, "an engine serves no peer without a pick"


async def test_a_region_under_another_name_is_not_spoken_to(world: World) -> None:
    """Its certificate says who it is, not the name that the configuration has for its address."""
    own = world.us.settings.relays
    assert own is not None
    renamed = msgspec.structs.replace(
        own, regions={US: f"127.0.0.1:{free_ports(2)}", "atlantis": own.regions[EU]}
    )
    federation = Federation(region=US, forward_port=free_ports(2))
    chosen = replace(world.us.settings, relays=renamed, federation=federation, eds_path="", region_rules=())
    asked = len(world.eu.picker.headers)
    engine = world.us.engines[0]
    async with EnvoyProcess(chosen) as envoy:
        world.us.picker.destination = f"{chosen.forwards['atlantis']},{engine.address}"
        world.us.picker.sets = {HOP_HEADER: TOKEN, FORWARD_HEADER: "atlantis"}
        assert (await ask(envoy.listener_url)).served == engine.address
    assert len(world.eu.picker.headers) == asked
