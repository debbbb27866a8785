"""Full duplex behind a real Envoy: what is read of responses, and that nothing is lost of those left."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy import messages as api
from tests.kit.replicas import chat_body
from tests.kit.scripted import Gateway, request
from tests.observe import answers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.scripted import Script

END = answers.chunk(b"")
READ, LEFT = "all", "none"


def chat(text: str, **fields: int) -> bytes:
    return json.dumps(chat_body(text, stream=True, **fields)).encode()


def plays(*pieces: bytes, head: bytes | None = None, end: bytes = END) -> Script:
    """An answer of pieces, each a chunk of its own."""

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() if head is None else head)
        for piece in pieces:
            writer.write(answers.chunk(piece))
            await asyncio.sleep(0.01)
        writer.write(end)

    return play


TOKENS = [answers.token(f" word{number}") for number in range(5)]


async def test_a_read_answer_tells_everything_and_passes_unchanged(tmp_path: Path) -> None:
    usage = answers.usage() + answers.DONE
    cut = len(usage) // 3
    pieces = [*TOKENS, usage[:cut], usage[cut : 2 * cut], usage[2 * cut :]]
    async with Gateway(tmp_path, plays(*pieces), observe=READ) as gateway:
        reply = await gateway.ask()
        assert (reply.status, reply.body, reply.cut) == (200, b"".join(pieces), False)
        outcome = await gateway.outcome()
        assert (outcome["cause"], outcome["status"]) == ("completed", 200)
        assert (outcome["prompt_tokens"], outcome["completion_tokens"]) == (1200, 5)
        assert outcome["cached_tokens"] == 1024
        assert outcome["response_bytes"] == len(reply.body)
        assert 1 < outcome["chunks"] <= len(pieces)  # what Envoy reads late it passes on together
        assert 0 < outcome["ttft_ms"] < outcome["e2e_ms"]
        assert 0 < outcome["itl_ms"] < outcome["e2e_ms"]
        assert set(outcome["sources"].values()) == {"stream"}
        assert await gateway.picker.metric("epp_response_sampling_total", observe="read") == 1
        assert await gateway.picker.metric("llm_d_epp_response_processing_duration_seconds_count") == 1
        assert await gateway.picker.metric("llm_d_epp_response_size_bytes_sum") == len(reply.body)


@pytest.mark.parametrize("first_token", [False, True])
async def test_a_client_that_leaves(tmp_path: Path, first_token: bool) -> None:
    asked = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if first_token:
            writer.write(answers.head() + answers.chunk(TOKENS[0]))
        asked.set()
        await reader.read()

    async with Gateway(tmp_path, play, observe=READ) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request())
        await asyncio.wait_for(asked.wait(), 240)
        if first_token:
            await reader.readuntil(b"word0")
        writer.transport.abort()
        await gateway.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)
        outcome = await gateway.outcome()
        assert outcome["cause"] in (("cut-off",) if first_token else ("client-gone", "stream-end"))
        assert (outcome["ttft_ms"] is not None) is first_token


@pytest.fixture
def trailers_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Envoy pass trailers of HTTP/1.1, which it drops as it is."""
    pack, options = api.pack, api.core.Http1ProtocolOptions(enable_trailers=True)

    def with_trailers(message: Any) -> Any:
        if isinstance(message, api.hcm.HttpConnectionManager):
            message.http_protocol_options = options
        explicit = getattr(message, "explicit_http_config", None)
        if explicit is not None and explicit.http_protocol_options is not None:
            explicit.http_protocol_options = options
        return pack(message)

    monkeypatch.setattr(api, "pack", with_trailers)


@pytest.mark.usefixtures("trailers_pass")
@pytest.mark.parametrize("observe", ["all", "none", {"mode": "none", "unobserved": "carry"}])
async def test_requests_of_every_shape_arrive_whole(tmp_path: Path, observe: object) -> None:
    trailing = b"0\r\nx-after: all\r\n\r\n"
    # With retries on, Envoy 1.40 sends the body of a request with trailers upstream twice: its router keeps a
    # copy for them, which it takes for buffered when the filter continues with the trailers.
    script = plays(b"one", b"two", end=trailing)
    async with Gateway(tmp_path, script, envoy={"retries": 0}, observe=observe) as gateway:
        long = chat("x" * 3_000_000)
        for body, trailers in ((None, b""), (long, b""), (None, b"x-checksum: 1\r\n"), (long, b"x-c: 1\r\n")):
            reply = await gateway.ask(body, trailers=trailers)
            assert (reply.status, reply.body, reply.cut) == (200, b"onetwo", False)
            assert b"x-after: all" in reply.trailers
            assert gateway.upstream.bodies[-1] == (chat("hello") if body is None else body)
            assert gateway.upstream.trailers[-1] == trailers
        for method, empty in (("GET", None), ("POST", b"")):
            reply = await gateway.ask(empty, method=method, path="/tokenize")
            assert (reply.status, reply.body, reply.cut) == (200, b"onetwo", False)
            assert gateway.upstream.bodies[-1] == b""
        how = {"all": "read", "none": "leave"}.get(str(observe), "carry")
        assert await gateway.picker.metric("epp_response_sampling_total", observe=how) == 6


@pytest.mark.parametrize(("early", "prompt_bytes"), [(False, 100), (True, 200_000)])
async def test_no_answer_of_a_left_stream_is_lost(tmp_path: Path, early: bool, prompt_bytes: int) -> None:
    """The upstream answers at once, or even before it was sent the body: the worst case for an early end."""
    answer = b"answered at once" * 8
    status = b"401 no" if early else b"200 OK"
    head = b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n" % (status, len(answer))
    body = chat("x" * prompt_bytes)
    async with Gateway(tmp_path, plays(head=head, end=answer), observe=LEFT) as gateway:
        gateway.upstream.early = early
        left = iter(range(400))

        async def client() -> None:
            for _ in left:
                reply = await gateway.ask(body)
                assert (reply.body, reply.cut) == (answer, False)

        await asyncio.gather(*(client() for _ in range(16)))
        assert await gateway.picker.metric("epp_response_sampling_total", observe="leave") == 400


async def test_the_lease_of_a_left_stream_ends_as_predicted(tmp_path: Path) -> None:
    short = chat("hello", max_tokens=8)
    async with Gateway(tmp_path, plays(*TOKENS), observe=LEFT) as gateway:
        assert (await gateway.ask(short)).body == b"".join(TOKENS)
        outcome = await gateway.outcome()
        assert (outcome["cause"], outcome["status"], outcome["ttft_ms"]) == ("unobserved", None, None)
        assert outcome["sources"] == {"cause": "stream", "e2e_ms": "predicted"}
        assert 100 < outcome["e2e_ms"] < 2000, "seven steps of the prior, to the next look"
        await gateway.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)


async def test_above_the_chunk_limit_answers_pass_unread_and_no_body_is_replaced(tmp_path: Path) -> None:
    """Until the limit lowers the share answers are read; then pieces pass as they come, in an open stream."""
    answer = b"".join(TOKENS)
    limited = {"mode": "all", "max_chunks_per_s": 1}
    async with Gateway(tmp_path, plays(*TOKENS), observe=limited) as gateway:
        async with asyncio.timeout(240):
            while not await gateway.picker.metric("epp_response_sampling_total", observe="carry"):
                assert (await gateway.ask()).body == answer
        count = len(gateway.outcomes())
        reply = await gateway.ask()
        assert (reply.status, reply.body, reply.cut) == (200, answer, False)
        assert await gateway.picker.metric("epp_response_sampling_total", observe="leave") == 0
        outcome = await gateway.outcome(count + 1)
        assert (outcome["cause"], outcome["status"]) == ("completed", 200)
        assert outcome["sources"]["e2e_ms"] == "stream", "its end was seen, not predicted"
