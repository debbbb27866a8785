"""What each gateway's Envoy makes of a picker's answers, or of none: a server of the kit says what a test wants."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epp.envoy import messages as api
from epp.envoy.process import EnvoyError, EnvoyProcess
from tests.envoy.conftest import Answer, ask
from tests.gateways.rig import DESTINATION, GATEWAYS, Gateway, as_written
from tests.kit.envoy import Replica, require_envoy, require_version, settings
from tests.kit.extproc_server import ExtProcServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from epp.envoy.settings import EnvoySettings
    from tests.gateways import shapes

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

NOBODY = "127.0.0.1:1"
#: Choices of each endpoint in turn: who is not obeyed makes them by chance once in 2 to the 16.
CHOICES = 8


@dataclass
class Scripted:
    """An Envoy, the kit's server and two upstreams."""

    gateway: Gateway
    picker: ExtProcServer
    replicas: list[Replica]
    url: str

    @property
    def addresses(self) -> list[str]:
        return [replica.address for replica in self.replicas]

    async def ask(self, destination: str = "") -> Answer:
        """One chat, of a client that names an endpoint by itself."""
        return await ask(self.url, headers={DESTINATION: destination} if destination else None)

    def says(self, destination: str = "", **answer: Any) -> None:
        """Set all that the picker answers."""
        usual = {"tells": ("header", "metadata"), "leaves": False}
        vars(self.picker).update(usual | answer, destination=destination)

    async def obeys(self, name: str, **answer: Any) -> bool:
        """Whether each endpoint is chosen each time: by the ``picker``, or by the ``client``."""
        chosen = [self.addresses[0]] * CHOICES + [self.addresses[1]] * CHOICES
        served = []
        for address in chosen:
            self.says(address if name == "picker" else "", **answer)
            served.append((await self.ask(address if name == "client" else "")).served)
        return served == chosen


@asynccontextmanager
async def scripted(gateway: Gateway, folder: Path, **options: Any) -> AsyncIterator[Scripted]:
    require_envoy()
    await require_version(1, 38, "what gateways write")
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Replica()) for _ in range(2)]
        picker = await stack.enter_async_context(ExtProcServer())
        pool = [replica.endpoint for replica in replicas]
        with as_written(gateway, **options):
            envoy = EnvoyProcess(settings(pool, picker.port, eds_path=str(folder / "eds.json")))
            await stack.enter_async_context(envoy)
        yield Scripted(gateway, picker, replicas, envoy.listener_url)


def changed(name: str, change: Callable[[shapes.Shape], None]) -> Gateway:
    """A gateway whose shape differs from what it writes."""

    def shape(found: EnvoySettings) -> shapes.Shape:
        made = GATEWAYS[name].shape(found)
        change(made)
        return made

    return replace(GATEWAYS[name], shape=shape)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=GATEWAYS)
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripted]:
    gateway = GATEWAYS[request.param]

    def impatient(shape: shapes.Shape) -> None:
        """Timeouts are short where a test waits for them, and shorter than any test where they end nothing."""
        shape.processor.message_timeout = api.ms(50 if gateway.duplex else 5000)
        service = (shape.overrides or shape.processor).grpc_service
        assert service is not None
        service.timeout = api.ms(50)

    async with scripted(changed(request.param, impatient), tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.mark.parametrize("place", ["header", "metadata"])
async def test_where_the_answer_is_read(rig: Scripted, place: str) -> None:
    assert await rig.obeys("picker", tells=(place,)) is (place == rig.gateway.reads)


async def test_endpoints_that_are_not_there(rig: Scripted) -> None:
    """One that the gateway does not know is passed over; a dead one only where it retries."""
    gateway, (first, second) = rig.gateway, rig.replicas
    rig.says(f"{NOBODY},{second.address}")
    answer = await rig.ask()
    assert (answer.status, answer.served) == ((200, second.address) if gateway.known_hosts else (503, ""))
    rig.says(NOBODY)
    assert (await rig.ask()).status == gateway.without_a_pick
    rig.says(f"{first.address},{second.address}")
    await first.stop()
    answer = await rig.ask()
    assert (answer.status, answer.served) == ((200, second.address) if gateway.retries else (503, ""))
    await first.start()


async def test_a_stream_that_ends_without_an_answer_lets_the_request_go_on(rig: Scripted) -> None:
    """With status OK, and also in a gateway that fails closed: then a client's own header chooses."""
    rig.says(leaves=True)
    assert (await rig.ask()).status == rig.gateway.without_a_pick
    assert await rig.obeys("client", leaves=True) is (rig.gateway.reads == "header")


async def test_a_picker_that_hangs(rig: Scripted) -> None:
    """The message timeout ends the wait where bodies are buffered; nothing does in full duplex, gRPC's never."""
    rig.says(rig.addresses[0])
    rig.picker.going.clear()
    asked = asyncio.ensure_future(rig.ask())
    await asyncio.wait([asked], timeout=0.5 if rig.gateway.duplex else 240)
    assert asked.done() is not rig.gateway.duplex
    rig.picker.going.set()
    waited = 200 if rig.gateway.duplex or rig.gateway.opens else 504
    assert (await asked).status == waited


@pytest.mark.parametrize("name", ["ai-buffered", "llm-d-service", "envoy-gateway"])
async def test_the_cure_of_clients_destinations(tmp_path: Path, name: str) -> None:
    """The header is removed as soon as it is read, and picks are obeyed as before."""
    async with scripted(GATEWAYS[name], tmp_path, strips=True) as rig:
        assert await rig.obeys("picker")
        rig.says(leaves=True)
        for address in rig.addresses:
            assert (await rig.ask(address)).status == rig.gateway.without_a_pick
        late = [headers for replica in rig.replicas for headers in replica.headers if DESTINATION in headers]
        assert len(late) == 2 * CHOICES, "those that the picker set"


@pytest.mark.parametrize("name", ["ai-duplex", "envoy-gateway"])
async def test_a_route_that_removes_the_header_removes_the_pick(tmp_path: Path, name: str) -> None:
    """An HTTPRoute's RequestHeaderModifier is no cure."""

    def removing(shape: shapes.Shape) -> None:
        shape.removed = [DESTINATION]

    async with scripted(changed(name, removing), tmp_path) as rig:
        assert not await rig.obeys("picker")


@pytest.mark.parametrize("name", ["istio-closed", "ai-duplex"])
async def test_full_duplex_without_trailers_is_refused_on_a_listener_and_works_on_a_route(
    tmp_path: Path, name: str
) -> None:
    """Istio 1.27 writes it so."""

    def no_trailers(shape: shapes.Shape) -> None:
        modes = (shape.overrides or shape.processor).processing_mode
        assert modes is not None
        modes.request_trailer_mode = modes.response_trailer_mode = (
            api.ext_proc.ProcessingModeHeaderSendMode.SKIP
        )

    gateway = changed(name, no_trailers)
    if name == "istio-closed":
        async with scripted(gateway, tmp_path) as rig:
            assert await rig.obeys("picker")
    else:
        with pytest.raises(EnvoyError, match="request_trailer_mode has to be set to SEND"):
            async with scripted(gateway, tmp_path):
                pass
