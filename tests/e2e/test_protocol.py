"""How clients speak HTTP: old versions, upgrades, many headers, and what Envoy answers by itself."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import Variant
from epp.types import Endpoint
from tests.kit.envoy import ScriptedUpstream, require_envoy, settings
from tests.kit.picker import Serving
from tests.kit.replicas import CHAT, MODEL, chat_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MESSAGES = "/v1/messages"
MOST_BYTES = 100_000


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[Variant.STANDALONE, Variant.FULL_DUPLEX])
async def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    require_envoy()
    folder = tmp_path_factory.mktemp("serving")
    async with Serving(folder, variant=request.param, request={"max_body_bytes": MOST_BYTES}) as made:
        yield made


async def raw(url: str, head: str, body: bytes = b"") -> tuple[str, bytes]:
    """The head and the body of the answer to a request of which every byte is given, up to the connection's end."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    async with asyncio.timeout(240):
        answer = await reader.read()
    writer.close()
    found, _, rest = answer.partition(b"\r\n\r\n")
    return found.decode().lower(), rest


def posted(
    path: str, body: bytes, *, version: str = "1.1", headers: str = "host: a\nconnection: close"
) -> str:
    length = f"content-type: application/json\ncontent-length: {len(body)}"
    return f"POST {path} HTTP/{version}\n{length}" + (f"\n{headers}" if headers else "")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("headers", ["", "host: a\nconnection: close"], ids=["ApacheBench", "nginx"])
async def test_http_1_0_is_served_and_a_stream_ends_with_its_connection(
    serving: Serving, headers: str
) -> None:
    body = json.dumps(chat_body("hello", stream=True, max_tokens=4)).encode()
    head, events = await raw(serving.url, posted(CHAT, body, version="1.0", headers=headers), body)
    assert head.startswith("http/1.0 200 ok")
    assert "transfer-encoding" not in head
    assert events.endswith(b"data: [DONE]\n\n")
    body = json.dumps(chat_body("hello", max_tokens=4)).encode()
    head, answer = await raw(serving.url, posted(CHAT, body, version="1.0", headers=headers), body)
    assert head.startswith("http/1.0 200 ok")
    assert json.loads(answer)["usage"]["completion_tokens"] == 4
    head, answer = await raw(serving.url, "GET /v1/models HTTP/1.0")
    assert json.loads(answer)["data"][0]["id"] == MODEL


@pytest.mark.asyncio(loop_scope="module")
async def test_more_than_a_hundred_headers_pass_and_too_many_are_told(serving: Serving) -> None:
    body = json.dumps(chat_body("hello", max_tokens=4)).encode()
    more = "".join(f"\nx-h{number}: v" for number in range(110))  # the engine here takes 128
    head, _ = await raw(serving.url, posted(CHAT, body) + more, body)
    assert head.startswith("http/1.1 200")
    if serving.variant is Variant.FULL_DUPLEX:
        return  # Envoy hangs up while it shows its answer to the picker
    for many in (more * 3, f"\nx-long: {'x' * 100_000}"):
        head, answer = await raw(serving.url, f"GET {CHAT} HTTP/1.1\nhost: a{many}")
        assert head.startswith("http/1.1 431")
        told = json.loads(answer)["error"]
        assert (told["type"], told["message"]) == ("invalid_request_error", "Request Header Fields Too Large")


async def error(answer: aiohttp.ClientResponse, status: int) -> Any:
    body = await answer.text()
    assert (answer.status, answer.content_type) == (status, "application/json"), body
    return json.loads(body)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_too_long_is_told_in_the_words_of_its_api(serving: Serving, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield long

    long = b"x" * (MOST_BYTES + 1)
    headers = {"content-type": "application/json"}
    for path, kind in ((CHAT, "invalid_request_error"), (MESSAGES, "request_too_large")):
        data = pieces() if chunked else long
        async with serving.http.post(serving.url + path, data=data, headers=headers) as answer:
            told = await error(answer, 413)
            assert told["error"]["type"] == kind
            assert told.get("type") == ("error" if path == MESSAGES else None)
    async with serving.http.post(serving.url + "/score", data=long, headers=headers) as answer:
        assert (await error(answer, 413))["error"]["code"] == 413


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_envoys_own_failures_are_told_in_the_words_of_the_api(path: str) -> None:
    """Neither picker nor engine can be reached; then an engine takes a request and never answers."""
    require_envoy()
    kinds = {503: "overloaded_error", 504: "timeout_error"} if path == MESSAGES else {}

    async def hang(_: str, writer: asyncio.StreamWriter) -> None:
        await writer.drain()

    async with aiohttp.ClientSession() as http, ScriptedUpstream(hang) as upstream:
        for endpoint, status, idle_s in (
            (Endpoint("127.0.0.1:1"), 503, 240.0),
            (upstream.endpoint, 504, 0.5),
        ):
            alone = settings([endpoint], picker_port=1, stream_idle_timeout_s=idle_s)
            async with (
                EnvoyProcess(alone) as envoy,
                http.post(envoy.listener_url + path, data=b"{}") as answer,
            ):
                told = await error(answer, status)
                assert told["error"]["type"] == kinds.get(status, "server_error")
                assert told["error"]["message"]
