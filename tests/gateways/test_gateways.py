"""Each gateway's Envoy before the real picker: what works, and what users see when the picker dies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio

from tests.gateways import shapes
from tests.gateways.rig import BODY, GATEWAYS, Rig
from tests.kit.envoy import require_envoy, require_version
from tests.kit.replicas import CHAT
from tests.kit.scripted import read_reply, request
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

SERVED = "x-conformance-test-served-endpoint"
MB = 1_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=GATEWAYS)
async def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    require_envoy()
    await require_version(1, 38, "what gateways write")
    async with Rig(tmp_path_factory.mktemp(request.param), GATEWAYS[request.param]) as made:
        yield made


@pytest.mark.parametrize("body", [BODY, None], ids=["chat", "no-body"])
async def test_requests_go_where_the_picker_says(rig: Rig, body: bytes | None) -> None:
    for address in rig.addresses * 2:
        other = next(each for each in rig.addresses if each != address)
        told = {"test_epp_endpoint_selection": address, "x_gateway_destination_endpoint": other}
        status, headers, answer = await rig.ask(body, **told)
        assert (status, answer["served"]) == (200, address), "a client's own header is overwritten"
        if rig.gateway.answers_pass:
            assert (headers[SERVED] == address) is rig.gateway.tells_served


async def test_trailers_end_a_request(rig: Rig) -> None:
    async with connection(rig) as (reader, writer):
        writer.write(request(BODY, trailers=b"x-after: all\r\n"))
        assert (await read_reply(reader)).status == 200


async def test_a_list_of_endpoints(rig: Rig) -> None:
    for address in rig.addresses:
        both = sorted(rig.addresses, key=lambda each: each != address)
        status, _, answer = await rig.ask(test_epp_endpoint_selection=",".join(both))
        assert status == rig.gateway.without_a_pick
        assert status == 503 or answer["served"] == address


async def test_a_subset_hint_arrives_where_its_namespace_is_forwarded(rig: Rig) -> None:
    """A hint that allows nobody is 503."""
    assert await rig.status(x_hint="10.9.9.9:1") == (503 if rig.gateway.hints else 200)


async def test_long_bodies_and_answers(rig: Rig) -> None:
    """Buffered, neither may be longer than the buffers of the connection: 32 KiB."""
    buffered = not rig.gateway.duplex
    long = BODY[:-1] + b', "pad": "%b"}' % (b"x" * MB)
    assert await rig.status(long) == (413 if buffered else 200)
    answers = await asyncio.gather(*(rig.ask(x_pad=str(MB)) for _ in range(8)))
    if buffered and rig.gateway.answers_pass:
        assert {status for status, _, _ in answers} == {500}
    else:
        assert {(status, len(answer["pad"])) for status, _, answer in answers} == {(200, MB)}


async def test_the_picker_is_killed(rig: Rig) -> None:
    """It has the head of one upload, a piece of another and an answer under way; then it is away; then back."""
    gateway, sent = rig.gateway, await rig.sent()
    async with connection(rig) as (head_reader, head), connection(rig) as (piece_reader, piece):
        start = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        head.write(start)
        piece.write(start + b"5\r\n%b\r\n" % BODY[:5])
        await until(lambda: has_sent(rig, sent + 2 + gateway.duplex))
        async with rig.http.get(rig.url + "/v1/models", headers={"x-pad": str(30 * MB)}) as answer:
            await rig.picker.kill()
            head.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
            piece.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY) - 5, BODY[5:]))
            assert (await read_reply(head_reader)).status == gateway.alone
            assert (await read_reply(piece_reader)).status == (500 if gateway.duplex else gateway.alone)
            if gateway.duplex:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
    await no_picker(rig)
    await rig.picker.start()
    async with asyncio.timeout(240):
        await rig.until_back()


async def no_picker(rig: Rig) -> None:
    """What is answered while nobody listens where the picker was, and once Envoy is told that there is none."""
    gateway = rig.gateway
    assert await rig.status(None) == gateway.alone
    # The body's first bytes are on their way before the connection is refused.
    assert await rig.status() == (500 if gateway.duplex else gateway.alone)
    for address in rig.addresses:
        if gateway.opens and gateway.reads == "header":
            assert {await served_by(rig, address) for _ in range(4)} == {address}, "the client chooses"
        elif gateway.opens:
            async with asyncio.timeout(240):
                while await served_by(rig, address) == address:
                    pass
        else:
            assert await served_by(rig, address) == ""
    if gateway.known_hosts:
        settings = rig.envoy._settings
        shapes.write_picker(settings, there=False)
        await until(lambda: hosts(rig, 0))
        assert await rig.status() == gateway.alone
        shapes.write_picker(settings)
        await until(lambda: hosts(rig, 1))


async def served_by(rig: Rig, destination: str) -> str:
    """Who served a request of a client that names an endpoint by itself, "" for nobody."""
    status, _, answer = await rig.ask(None, x_gateway_destination_endpoint=destination)
    return str(answer["served"]) if status == 200 else ""


async def has_sent(rig: Rig, count: int) -> bool:
    return await rig.sent() >= count


async def hosts(rig: Rig, count: int) -> bool:
    return (await rig.envoy.stats("cluster.picker.membership_total$")).popitem()[1] == count


@contextlib.asynccontextmanager
async def connection(rig: Rig) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of its own."""
    host, _, port = rig.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
