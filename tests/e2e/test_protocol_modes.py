"""Every way of speaking ext_proc, with a real Envoy: what arrives upstream, where, and what the picker saw of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from epp.envoy import messages as api
from epp.envoy.settings import TlsFiles
from epp.extproc.modes import BodyMode
from tests.kit.certificates import self_signed
from tests.kit.modes import Speech, TwoEngines, speaking
from tests.kit.picker import CONFIG
from tests.kit.replicas import CHAT, MODEL, chat_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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
    "partial": (Speech(BodyMode.BUFFERED_PARTIAL), ("whole", "whole", "unread")),
    "partial, 64 KiB": (
        Speech(BodyMode.BUFFERED_PARTIAL, buffer_bytes=65536),
        ("whole", "cut", "unread"),
    ),
    "streamed, shown": (Speech(BodyMode.STREAMED, BodyMode.STREAMED), UNREAD),
    "full duplex": (DUPLEX, ("whole", "whole", "unread")),
    "full duplex, left": (DUPLEX, ("whole", "whole", "unread")),
    "streamed-ahead, 32 KiB": (
        Speech(BodyMode.STREAMED, fields=AHEAD, buffer_bytes=32768),
        ("whole", "unread", "unread"),
    ),
}


@pytest.mark.parametrize("name", SPEECHES)
async def test_requests_arrive_whole_where_they_were_picked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speech, seen = SPEECHES[name]
    speaking(monkeypatch, speech)
    cases = [(chat(10), JSON), (chat(LONG), JSON), (b"--b\r\n" + bytes(LONG) + b"\r\n--b--", UPLOAD)]
    observe = "none" if name.endswith("left") else "all"
    async with TwoEngines(tmp_path, policy={"name": "session-affinity"}, observe=observe) as engines:
        for _ in range(4):
            for body, headers in cases:
                async with engines.http.post(engines.url + CHAT, data=body, headers=headers) as answer:
                    text = await answer.text()
                    assert answer.status == 200, text + engines.picker.log()[-3000:]
                    served = json.loads(text)["served"]
                assert served == await engines.picked()
                assert engines.got[-1].body == body
            async with engines.http.get(engines.url + "/v1/models") as answer:
                assert (await answer.json())["served"] == await engines.picked()
        assert await engines.seen() == Counter(4 * seen) | {"none": 4}
        await no_lease_is_left(engines)


@pytest.mark.parametrize("name", [name for name, (_, seen) in SPEECHES.items() if seen[0] == "whole"])
async def test_a_model_rewritten_by_the_header_arrives_in_a_body_of_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The policy reads no bodies: the header alone has this one read."""
    speech, seen = SPEECHES[name]
    speaking(monkeypatch, speech)
    observe = "none" if name.endswith("left") else "all"
    headers = {**JSON, "x-llm-d-model-name-rewrite": "org/another-model"}
    async with TwoEngines(tmp_path, policy={"name": "round-robin"}, observe=observe) as engines:
        for body in (chat(10), chat(LONG)) if seen[1] == "whole" else (chat(10),):
            async with engines.http.post(engines.url + CHAT, data=body, headers=headers) as answer:
                told = await answer.json()
            got = engines.got[-1]
            assert got.fields == json.loads(body) | {"model": "org/another-model"}
            assert int(got.headers.get("content-length", len(got.body))) == len(got.body) == told["bytes"]
            assert told["model"] == MODEL, "the client's own name comes back"
        await no_lease_is_left(engines)


#: Ways in which an upload's first bytes must be upstream before its last are sent.
FLOWING = [
    "none",
    "streamed",
    "streamed-ahead",
    "buffered",
    "buffered, no override",
    "partial",
    "full duplex",
]


@pytest.mark.parametrize("name", FLOWING)
async def test_an_upload_flows_past_the_picker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ten megabytes of audio; the second half is sent when the first has begun to arrive."""
    speaking(monkeypatch, SPEECHES[name][0])
    half = 5 << 20
    async with TwoEngines(tmp_path, request={"max_body_bytes": 1 << 20}) as engines:

        async def pieces() -> AsyncIterator[bytes]:
            yield bytes(half)
            async with asyncio.timeout(10):
                await engines.begun.wait()
            yield bytes(half)

        url = engines.url + "/v1/audio/transcriptions"
        async with engines.http.post(url, data=pieces(), headers=UPLOAD) as answer:
            assert (answer.status, (await answer.json())["bytes"]) == (200, 2 * half)
        assert engines.got[0].upstream == await engines.picked()
        assert await engines.seen() == {"unread": 1}
        await no_lease_is_left(engines)


@pytest.mark.parametrize(
    "name", ["buffered", "none", "streamed", "partial", "full duplex", "full duplex, left"]
)
async def test_a_websocket_talks_to_the_endpoint_that_was_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speaking(monkeypatch, SPEECHES[name][0])
    observe = "none" if name.endswith("left") else "all"
    async with TwoEngines(tmp_path, observe=observe) as engines:
        for number in range(4):
            async with engines.http.ws_connect(engines.url + "/v1/realtime?model=m") as socket:
                assert await socket.receive_str(timeout=10) == await engines.picked()
                for turn in range(3):
                    await socket.send_str(f"hello {number} {turn}")
                    assert await socket.receive_str(timeout=10) == f"hello {number} {turn}"
                await socket.send_bytes(bytes(300_000))
                assert await socket.receive_bytes(timeout=10) == bytes(300_000)
                if not name.endswith("left"):
                    # it lasts as long; the one before may still be on its way out
                    await engines.picker.until_metric("epp_requests_in_flight", lambda count: count == 1)
        assert await engines.seen() == {"unread": 4}
        await no_lease_is_left(engines)


async def test_bodies_that_nobody_asks_about_are_not_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaking(monkeypatch, SPEECHES["buffered"][0])
    async with TwoEngines(tmp_path, policy={"name": "round-robin"}) as engines:
        for _ in range(4):
            async with engines.http.post(engines.url + CHAT, data=chat(LONG), headers=JSON) as answer:
                assert (await answer.json())["served"] == await engines.picked()
        assert await engines.seen() == {"unread": 4}


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
