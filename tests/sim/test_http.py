from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.lab.sim.http import SimConfig, SimReplica
from tests.kit.logs import own_lines
from tests.kit.replicas import (
    CHAT,
    MODEL,
    QUICK,
    SLOW,
    chat_body,
    metric,
    post,
    quick_config,
    running_fleet,
)
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def replica() -> AsyncIterator[SimReplica]:
    async with SimReplica(quick_config()) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def stream(
    http: aiohttp.ClientSession, replica: SimReplica, body: object, path: str = CHAT
) -> list[Any]:
    async with http.post(replica.url + path, json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = (await response.read()).decode()
    pieces = text.split("\n\n")
    assert pieces[-2:] == ["data: [DONE]", ""]
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-2]]


# Answers


async def test_the_openai_sdk_chats_with_and_without_streaming(replica: SimReplica) -> None:
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "hello there"}]
        whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                max_tokens=5,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert [model.id async for model in client.models.list()] == [MODEL]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 5
    assert whole.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[1:-1]] == [None] * 4 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_completions_take_text_and_token_ids(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    status, answer = await post(
        http, replica, {"model": MODEL, "prompt": "x" * 400, "max_tokens": 3}, "/v1/completions"
    )
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 100
    body = {"model": MODEL, "prompt": list(range(64)), "max_tokens": 3, "stream": True}
    chunks = await stream(http, replica, body, "/v1/completions")
    assert len(chunks) == 3
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert len(chunks[0]["choices"][0]["text"]) == 4


@pytest.mark.parametrize("encoding", ["gzip", "br"])
@pytest.mark.parametrize("path", [CHAT, "/sim/fault"])
async def test_a_body_that_is_encoded_is_no_json(
    replica: SimReplica,
    http: aiohttp.ClientSession,
    path: str,
    encoding: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with engines, which take a body as it came; nothing of it is an error of the replica's."""
    headers = {"content-encoding": encoding}
    async with http.post(replica.url + path, data=b"damaged", headers=headers) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error"
    assert not own_lines(caplog, loggers=("epp", "aiohttp"))


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({}, 16, "stop"),
        ({"max_tokens": 4}, 4, "length"),
        ({"max_completion_tokens": 5, "max_tokens": 4}, 5, "length"),
        ({"max_tokens": 40}, 16, "stop"),
        ({"max_tokens": 40, "ignore_eos": True}, 40, "length"),
        ({"max_tokens": 40, "min_tokens": 30}, 30, "stop"),
        ({"max_tokens": 1}, 1, "length"),
    ],
)
async def test_limits_are_respected(
    replica: SimReplica, http: aiohttp.ClientSession, fields: dict[str, Any], tokens: int, reason: str
) -> None:
    _, answer = await post(http, replica, chat_body("hi", **fields))
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == reason
    chunks = await stream(http, replica, chat_body("hi", stream=True, **fields))
    assert len(chunks) == 1 + tokens
    assert "usage" not in chunks[-1]


async def test_the_next_turn_hits_prompt_and_answer(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    question = "tell me something long " * 50
    _, first = await post(http, replica, chat_body(question, max_tokens=400, ignore_eos=True))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    answer = first["choices"][0]["message"]["content"]
    _, second = await post(http, replica, chat_body(question, answer, "go on"))
    before = first["usage"]["prompt_tokens"] + 400
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    # All but the last, partial block, and the block of the very last token.
    assert before - 32 < cached <= before
    for other in ({"cache_salt": "other"}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
        _, third = await post(http, replica, chat_body(question, answer, "go on", **other))
        assert third["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_cached_tokens_can_be_left_unreported(http: aiohttp.ClientSession) -> None:
    async with SimReplica(quick_config(report_cached_tokens=False)) as replica:
        _, answer = await post(http, replica, chat_body("hi"))
        assert "prompt_tokens_details" not in answer["usage"]


async def test_answers_are_the_same_everywhere(http: aiohttp.ClientSession) -> None:
    async with running_fleet([quick_config("a"), quick_config("b")]) as fleet:
        answers = [await post(http, replica, chat_body("what is it")) for replica in fleet]
        assert answers[0][1]["choices"] == answers[1][1]["choices"]
        for replica in fleet:
            async with http.get(f"{replica.url}/health") as response:
                assert response.headers["x-served-by"] == replica.config.name


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b'"\xff"', 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"model": "sim-model"}', 400, "messages"),
        (b'{"model": "sim-model", "messages": [{"content": "x"}]}', 400, "role"),
        (b'{"model": "sim-model", "messages": [{"role": "user", "content": 3}]}', 400, "content"),
        (b'{"model": "sim-model", "messages": [{"role": "user"}], "max_tokens": 0}', 400, "max_tokens"),
        (b'{"model": "sim-model", "messages": [{"role": "user"}], "n": 2}', 400, "one choice"),
        (
            b'{"model": "sim-model", "messages": [{"role": "user"}], "max_tokens": 99999}',
            400,
            "context length",
        ),
        (b'{"model": "gpt-x", "messages": [{"role": "user"}]}', 404, "does not exist"),
    ],
)
async def test_errors_are_openai_s(
    replica: SimReplica, http: aiohttp.ClientSession, body: bytes, status: int, words: str
) -> None:
    async with http.post(replica.url + CHAT, data=body) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


async def test_unknown_paths_are_a_404_in_the_same_format(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{replica.url}/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "not_found_error"
    async with http.get(f"{replica.url}/version") as response:
        assert "version" in await response.json()


# Load and leaving


async def test_a_thousand_streams_at_once_all_complete(http: aiohttp.ClientSession) -> None:
    async with SimReplica(quick_config()) as replica:
        results = await asyncio.gather(
            *(
                stream(http, replica, chat_body(f"user {index}", stream=True, max_tokens=8))
                for index in range(1000)
            )
        )
        assert {len(chunks) for chunks in results} == {9}
        counters = replica.snapshot().counters
        assert (counters.done, counters.generated_tokens) == (1000, 8000)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_cancels_its_job(http: aiohttp.ClientSession, streaming: bool) -> None:
    async with SimReplica(quick_config(engine_class=SLOW)) as replica:
        body = chat_body("hi", stream=streaming, max_tokens=5000, ignore_eos=True)
        task = asyncio.create_task(post(http, replica, body))
        await until(lambda: replica.snapshot().running == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: replica.snapshot().counters.cancelled == 1)
        await until(lambda: replica.snapshot().held_tokens == 0)


async def test_a_client_that_leaves_at_once_is_no_error(
    replica: SimReplica, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps(chat_body("hi", stream=True, max_tokens=50)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = replica.address.split(":")
    for _ in range(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + body)
        writer.write_eof()  # arrives with the body: the server closes before its answer's head is out
        await reader.read()
        writer.close()
    await until(lambda: not replica.snapshot().running)
    assert not own_lines(caplog, loggers=("epp", "aiohttp"))


async def test_tokens_come_as_they_are_generated(http: aiohttp.ClientSession) -> None:
    async with SimReplica(quick_config(engine_class=SLOW)) as replica:
        body = chat_body("hi", stream=True, max_tokens=5000, ignore_eos=True)
        async with http.post(replica.url + CHAT, json=body) as response:
            for _ in range(4):
                await response.content.readuntil(b"\n\n")
            assert replica.snapshot().running == 1
            assert replica.snapshot().counters.generated_tokens < 100


# Distance


async def test_every_endpoint_is_a_round_trip_away_and_the_order_is_kept(http: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    async with SimReplica(quick_config(rtt_ms=60.0)) as replica:
        for path in ("/health", "/metrics", "/v1/models"):
            start_s = loop.time()
            async with http.get(replica.url + path) as response:
                await response.read()
            assert loop.time() - start_s >= 0.058
        start_s = loop.time()
        chunks = await stream(http, replica, chat_body("hi", stream=True))
        assert loop.time() - start_s >= 0.058
        _, whole = await post(http, replica, chat_body("hi"))
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]


async def test_a_large_body_on_a_cold_connection_costs_extra_round_trips(http: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()

    async def elapsed_s(replica: SimReplica) -> float:
        start_s = loop.time()
        await post(http, replica, chat_body("x" * 40_000, max_tokens=1))
        return loop.time() - start_s

    async with SimReplica(quick_config(rtt_ms=100.0, slow_start=True)) as replica:
        assert await elapsed_s(replica) >= 0.198  # 14.6 kB, then 29.2 kB in a second flight
        windows = [window.window_bytes for window in replica._windows.values()]
        assert windows == [29_200]


# Metrics


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("vllm", {"running": "vllm:num_requests_running", "usage": "vllm:kv_cache_usage_perc"}),
        ("sglang", {"running": "sglang:num_running_reqs", "usage": "sglang:token_usage"}),
    ],
)
async def test_metrics_under_each_engine_s_names(
    http: aiohttp.ClientSession, engine: str, names: dict[str, str]
) -> None:
    async with SimReplica(quick_config(engine_class=SLOW, engine=engine)) as replica:
        task = asyncio.create_task(
            post(http, replica, chat_body("hi " * 500, max_tokens=5000, ignore_eos=True))
        )
        await until(lambda: replica.snapshot().counters.generated_tokens > 0)
        async with http.get(f"{replica.url}/metrics") as response:
            text = await response.text()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert metric(text, names["running"]) == 1
    assert 0 < metric(text, names["usage"]) < 0.01
    prefix = {"vllm": "vllm:", "sglang": "sglang:"}[engine]
    families = {family.name for family in text_string_to_metric_families(text)}
    assert all(name == "process_start_time_seconds" or name.startswith(prefix) for name in families)


async def test_both_names_at_once_and_the_pool_s_size(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    for _ in range(2):
        await post(http, replica, chat_body("hi " * 500))
    async with http.get(f"{replica.url}/metrics") as response:
        text = await response.text()
    assert metric(text, "sglang:max_total_num_tokens") == QUICK.kv_capacity_tokens
    assert metric(text, "vllm:cache_config_info", {"block_size": "16", "num_gpu_blocks": "61471"}) == 1
    assert metric(text, "vllm:prefix_cache_hits_total") > 300
    assert metric(text, "vllm:time_to_first_token_seconds_count") == 2
    assert metric(text, "sglang:num_requests_total") == 2
    assert metric(text, "process_start_time_seconds") > 1e9


async def test_answers_are_counted_by_the_reason_for_which_they_ended(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    for limit in (4, 40, 40):
        await post(http, replica, chat_body("hi", max_tokens=limit))
    await stream(http, replica, chat_body("hi", stream=True, max_tokens=4))
    async with http.get(f"{replica.url}/metrics") as response:
        text = await response.text()
    counted = {
        reason: metric(text, "vllm:request_success_total", {"finished_reason": reason})
        for reason in ("stop", "length", "abort")
    }
    assert counted == {"stop": 2, "length": 2, "abort": 0}


# Configuration


@pytest.mark.parametrize("changes", [{"rtt_ms": -1.0}, {"engine": "x"}, {"answer_tokens": 0}, {"models": ()}])
def test_a_configuration_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sim:"):
        replace(SimConfig(), **changes)
