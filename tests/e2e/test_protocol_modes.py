"""Every way of speaking ext_proc, with a real Envoy: what arrives upstream, where, and what the picker saw of it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from epp.envoy import messages as api
from epp.envoy.settings import TlsFiles
from epp.extproc.modes import BodyMode
from tests.kit.certificates import self_signed
from tests.kit.modes import Speech, TwoEngines, speaking
from tests.kit.picker import CONFIG
from tests.kit.replicas import CHAT, MODEL, chat_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON = {"content-type": "application/json"}
UPLOAD = {"content-type": "multipart/form-data; boundary=b"}
AHEAD = {"send_body_without_waiting_for_header_response": True}
LONG = 200_000


async def no_lease_is_left(engines: TwoEngines) -> None:
    await engines.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)


def chat(size: int) -> bytes:
    return json.dumps(chat_body("x" * size)).encode()


DUPLEX = Speech(
    BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, fields={"allow_mode_override": False}
)
UNREAD = ("unread", "unread", "unread")
#: Ways of speaking, and what is seen of a short chat, a long one and an upload.
SPEECHES = {
    "none": (Speech(BodyMode.NONE), UNREAD),
    "streamed": (Speech(BodyMode.STREAMED), UNREAD),
    "streamed-ahead": (Speech(BodyMode.STREAMED, fields=AHEAD), ("whole", "unread", "unread")),
    "buffered": (Speech(BodyMode.BUFFERED), ("whole", "whole", "unread")),
    "buffered, no override": (
        Speech(BodyMode.BUFFERED, fields={"allow_mode_override": False}),
        ("whole", "whole", "unread"),
    ),
    "partial, 64 KiB": (
        Speech(BodyMode.BUFFERED_PARTIAL, buffer_bytes=65536),
        ("whole", "cut", "unread"),
    ),
    "streamed, shown": (Speech(BodyMode.STREAMED, BodyMode.STREAMED), UNREAD),
    "full duplex": (DUPLEX, ("whole", "whole", "unread")),
    "full duplex, left": (DUPLEX, ("whole", "whole", "unread")),
}


@dataclass
class Way:
    """A way of speaking and who speaks so.

    Attributes:
        seen: of a short chat, a long one and an upload.
        told: whether Envoy tells when an upgraded request ends.
    """

    engines: TwoEngines
    seen: tuple[str, ...]
    told: bool

    async def new(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Bodies seen since ``counts``, which `TwoEngines.seen` gave."""
        return Counter(await self.engines.seen()) - Counter(counts)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SPEECHES)
async def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Way]:
    (speech, seen), name = SPEECHES[request.param], request.param
    engines = TwoEngines(
        tmp_path_factory.mktemp("way"),
        policy={"name": "session-affinity"},
        observe="none" if name.endswith("left") else "all",
        request={"max_body_bytes": 1 << 20},
    )
    async with AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            speaking(patch, speech)
            await stack.enter_async_context(engines)
        yield Way(engines, seen, not name.endswith(("left", "no override")))


async def test_requests_arrive_whole_where_they_were_picked_to(way: Way) -> None:
    engines, before = way.engines, await way.engines.seen()
    cases = [(chat(10), JSON), (chat(LONG), JSON), (b"--b\r\n" + bytes(LONG) + b"\r\n--b--", UPLOAD)]
    for _ in range(2):
        for body, headers in cases:
            async with engines.http.post(engines.url + CHAT, data=body, headers=headers) as answer:
                text = await answer.text()
                assert answer.status == 200, text + engines.picker.log()[-3000:]
                served = json.loads(text)["served"]
            assert served == await engines.picked()
            assert engines.got[-1].body == body
        async with engines.http.get(engines.url + "/v1/models") as answer:
            assert (await answer.json())["served"] == await engines.picked()
    assert await way.new(before) == Counter(2 * way.seen) | {"none": 2}
    await no_lease_is_left(engines)


async def rewrite_one(engines: TwoEngines, body: bytes) -> None:
    headers = {**JSON, "x-llm-d-model-name-rewrite": "org/another-model"}
    async with engines.http.post(engines.url + CHAT, data=body, headers=headers) as answer:
        told = await answer.json()
    got = engines.got[-1]
    assert got.fields == json.loads(body) | {"model": "org/another-model"}
    assert int(got.headers.get("content-length", len(got.body))) == len(got.body) == told["bytes"]
    assert told["model"] == MODEL, "the client's own name comes back"


async def test_a_model_rewritten_by_the_header_arrives_in_a_body_of_its_length(way: Way) -> None:
    for body, seen in zip((chat(10), chat(LONG)), way.seen, strict=False):
        if seen == "whole":
            await rewrite_one(way.engines, body)
    await no_lease_is_left(way.engines)


async def test_an_upload_flows_past_the_picker(way: Way) -> None:
    """Ten megabytes of audio; the second half is sent when the first has begun to arrive."""
    engines, half, before = way.engines, 5 << 20, await way.engines.seen()
    engines.begun.clear()

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(half)
        await engines.begun.wait()
        yield bytes(half)

    url = engines.url + "/v1/audio/transcriptions"
    async with engines.http.post(url, data=pieces(), headers=UPLOAD) as answer:
        assert (answer.status, (await answer.json())["bytes"]) == (200, 2 * half)
    assert engines.got[-1].upstream == await engines.picked()
    assert await way.new(before) == {"unread": 1}
    await no_lease_is_left(engines)


async def test_a_websocket_talks_to_the_endpoint_that_was_picked(way: Way) -> None:
    engines, before = way.engines, await way.engines.seen()
    for path in ("/v1/realtime?model=m", "/v1/responses"):
        async with engines.http.ws_connect(engines.url + path) as socket:
            assert await socket.receive_str() == await engines.picked()
            for turn in range(3):
                await socket.send_str(f"hello {path} {turn}")
                assert await socket.receive_str() == f"hello {path} {turn}"
            await socket.send_bytes(bytes(300_000))
            assert await socket.receive_bytes() == bytes(300_000)
            if way.told:
                # it lasts as long; the one before may still be on its way out
                await engines.picker.until_metric("epp_requests_in_flight", lambda count: count == 1)
    assert await way.new(before) == {"unread": 2}
    await no_lease_is_left(engines)


async def test_bodies_that_nobody_asks_about_are_not_buffered(tmp_path: Path) -> None:
    async with TwoEngines(tmp_path, policy={"name": "round-robin"}) as engines:
        for _ in range(2):
            async with engines.http.post(engines.url + CHAT, data=chat(LONG), headers=JSON) as answer:
                assert (await answer.json())["served"] == await engines.picked()
        assert await engines.seen() == {"unread": 2}
        await rewrite_one(engines, chat(LONG))  # the header alone has this one read
        assert await engines.seen() == {"unread": 2, "whole": 1}


async def test_in_observability_mode_all_is_decided_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"observability_mode": True, "deferred_close_timeout": api.ms(200), "allow_mode_override": False}
    speaking(monkeypatch, Speech(BodyMode.STREAMED, BodyMode.STREAMED, fields=fields))
    async with TwoEngines(tmp_path) as engines:
        for size in (10, LONG):
            async with engines.http.post(engines.url + CHAT, data=chat(size), headers=JSON) as answer:
                assert (await answer.json())["bytes"] == len(chat(size))
        async with engines.http.get(engines.url + "/v1/models") as answer:
            assert answer.status == 200
        observed = {"seen": "none", "mode": "observability"}
        await engines.picker.until_metric("epp_request_bodies_total", lambda value: value == 1, **observed)
        assert await engines.seen() == {"whole": 2, "none": 1}
        assert not any("x-gateway-destination-endpoint" in got.headers for got in engines.got)
        await no_lease_is_left(engines)
        assert "aborted" not in engines.picker.log()


@pytest.mark.parametrize("known", [True, False])
async def test_ext_proc_over_mutual_tls(tmp_path: Path, known: bool) -> None:
    for name in ("picker", "envoy", "other"):
        self_signed(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", name, alternatives=f"DNS:{name}.test")
    tls = {"cert_file": "picker.pem", "key_file": "picker.key", "client_ca_file": "envoy.pem"}
    mine = "envoy" if known else "other"
    files = TlsFiles(
        ca_file=str(tmp_path / "picker.pem"),
        cert_file=str(tmp_path / f"{mine}.pem"),
        key_file=str(tmp_path / f"{mine}.key"),
        server_name="picker.test",
    )
    listen = {**CONFIG["listen"], "tls": tls}
    async with TwoEngines(tmp_path, listen=listen, envoy={"picker_tls": files}) as engines:
        async with engines.http.post(engines.url + CHAT, data=chat(10), headers=JSON) as answer:
            assert answer.status == 200, "without a picker Envoy goes on by itself"
            served = (await answer.json())["served"]
        assert await engines.seen() == ({"whole": 1} if known else {})
        if known:
            assert served == await engines.picked()
