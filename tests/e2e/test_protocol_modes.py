"""Every way of speaking ext_proc, with a real Envoy: what arrives upstream, where, and what the picker saw of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from epp.envoy import messages as api
from epp.envoy.settings import TlsFiles
from epp.extproc.modes import BodyMode
from tests.kit.modes import Speech, TwoEngines, speaking
from tests.kit.picker import CONFIG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
AHEAD = {"send_body_without_waiting_for_header_response": True}
LONG = 200_000


async def no_lease_is_left(engines: TwoEngines) -> None:
    await engines.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)


def chat(size: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()


DUPLEX = Speech(
    BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, fields={"allow_mode_override": False}
)
SPEECHES = {
    "none": Speech(BodyMode.NONE),
    "streamed": Speech(BodyMode.STREAMED),
    "streamed-ahead": Speech(BodyMode.STREAMED, fields=AHEAD),
    "buffered": Speech(BodyMode.BUFFERED),
    "buffered, no override": Speech(BodyMode.BUFFERED, fields={"allow_mode_override": False}),
    "partial": Speech(BodyMode.BUFFERED_PARTIAL),
    "partial, 64 KiB": Speech(BodyMode.BUFFERED_PARTIAL, buffer_bytes=65536),
    "streamed, shown": Speech(BodyMode.STREAMED, BodyMode.STREAMED),
    "full duplex": DUPLEX,
    "full duplex, left": DUPLEX,
    "streamed-ahead, 32 KiB": Speech(BodyMode.STREAMED, fields=AHEAD, buffer_bytes=32768),
}
#: What is seen of a short chat, a long one and an upload.
SEEN = {
    "none": ["unread", "unread", "unread"],
    "streamed": ["unread", "unread", "unread"],
    "streamed-ahead": ["whole", "unread", "unread"],
    "buffered": ["whole", "whole", "unread"],
    "buffered, no override": ["whole", "whole", "unread"],
    "partial": ["whole", "whole", "unread"],
    "partial, 64 KiB": ["whole", "cut", "unread"],
    "streamed, shown": ["unread", "unread", "unread"],
    "full duplex": ["whole", "whole", "unread"],
    "full duplex, left": ["whole", "whole", "unread"],
    "streamed-ahead, 32 KiB": ["whole", "unread", "unread"],
}


@pytest.mark.parametrize("name", SPEECHES)
async def test_requests_arrive_whole_where_they_were_picked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speaking(monkeypatch, SPEECHES[name])
    upload = {"content-type": "multipart/form-data; boundary=b"}
    cases = [(chat(10), JSON), (chat(LONG), JSON), (b"--b\r\n" + bytes(LONG) + b"\r\n--b--", upload)]
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
        wanted = {kind: 4 * SEEN[name].count(kind) for kind in set(SEEN[name])} | {"none": 4}
        assert await engines.seen() == wanted
        await no_lease_is_left(engines)


UPLOAD = {"content-type": "multipart/form-data; boundary=b"}
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
    speaking(monkeypatch, SPEECHES[name])
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
    speaking(monkeypatch, SPEECHES[name])
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
    speaking(monkeypatch, SPEECHES["buffered"])
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


def certificates(folder: Path) -> None:
    """An authority, and certificates by it for picker and Envoy; one of Envoy's is by nobody."""

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    run("req", "-x509", *key, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other")
    for name in ("picker", "envoy"):
        ext = ("-addext", f"subjectAltName=DNS:{name}.test")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key")
        run(
            "req",
            "-x509",
            *key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-subj",
            f"/CN={name}",
            *ext,
            *signed,
        )


@pytest.mark.parametrize("known", [True, False])
async def test_ext_proc_over_mutual_tls(tmp_path: Path, known: bool) -> None:
    certificates(tmp_path)
    tls = {"cert_file": "picker.pem", "key_file": "picker.key", "client_ca_file": "ca.pem"}
    mine = "envoy" if known else "other"
    files = TlsFiles(
        ca_file=str(tmp_path / "ca.pem"),
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
