from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from epp.apis.registry import PARSERS
from epp.apis.usage import AnswerWatch
from epp.errors import ConfigError
from epp_lab.sim import api
from epp_lab.sim.http import SimReplica
from epp_lab.sim.serve import add_arguments, replica_configs
from tests.kit.apis import APIS, Api, cached_tokens
from tests.kit.replicas import (
    CHAT,
    MODEL,
    SLOW,
    chat_body,
    metric,
    post,
    quick_config,
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


async def test_a_replica_knows_the_responses_that_it_stores_until_it_restarts(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    async def respond(**fields: Any) -> tuple[int, Any]:
        return await post(http, replica, {"model": MODEL, "input": "hi", **fields}, "/v1/responses")

    _, first = await respond()
    status, second = await respond(previous_response_id=first["id"], store=False)
    assert status == 200
    for unknown in (second["id"], "resp_other"):
        status, error = await respond(previous_response_id=unknown)
        assert (status, error["error"]["param"]) == (404, "previous_response_id")
    await replica.kill()
    await replica.start()
    assert (await respond(previous_response_id=first["id"]))[0] == 404


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


@pytest.mark.parametrize(("api", "path"), [(api, path) for api in APIS for path in api.paths])
async def test_every_api_of_the_docs_is_answered(
    replica: SimReplica, http: aiohttp.ClientSession, api: Api, path: str
) -> None:
    """Whole and streamed, once cold and once cached, with the counts where the picker looks for them."""
    text = "hi " * 100
    prompts = {"messages": [{"role": "user", "content": text}], "input": text, "prompt": text, "text": text}
    long = {name: prompt for name, prompt in prompts.items() if name in api.body}
    body = api.body | long | {"model": MODEL}
    told = []
    for stream in (False, bool(api.stream)):
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        async with http.post(replica.url + path, json=body | more) as response:
            watch, answer = AnswerWatch(), await response.read()
            watch.started(response.status, {"content-type": response.content_type})
            watch.feed(answer, 0.0)
        ends = stream and api.name != "llamacpp-completion"  # whose end is the connection's
        assert (response.status, watch.streamed, watch.has_last_event()) == (200, stream, ends)
        told.append(watch.usage())
    whole, again = told
    if api.answer:
        assert whole.prompt_tokens == again.prompt_tokens
        assert whole.completion_tokens == again.completion_tokens == api.limit
    else:
        assert json.loads(answer)["input_tokens"] > 70
    assert whole.cached_tokens == (0 if cached_tokens(api) else None)
    if api.stream and long:
        assert (again.cached_tokens or 0) >= 64
    async with http.post(replica.url + path, json=body | {"model": "other"}) as response:
        assert response.status == 404
        assert set(await response.json()) == set(api.error)


# Load and leaving


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


# Metrics and lives


async def test_metrics_are_those_of_vllm(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    for limit in (4, 40, 40):
        await post(http, replica, chat_body("hi " * 500, max_tokens=limit))
    await stream(http, replica, chat_body("hi", stream=True, max_tokens=4))
    async with http.get(f"{replica.url}/metrics") as response:
        text = await response.text()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert all(name == "process_start_time_seconds" or name.startswith("vllm:") for name in names)
    assert metric(text, "vllm:cache_config_info", {"block_size": "16", "num_gpu_blocks": "61471"}) == 1
    assert metric(text, "vllm:prefix_cache_hits_total") > 300
    assert metric(text, "vllm:num_requests_running") == 0
    assert metric(text, "process_start_time_seconds") > 1e9
    name = "vllm:time_to_first_token_seconds"
    assert metric(text, f"{name}_bucket", {"le": "+Inf"}) == metric(text, f"{name}_count") == 4
    counted = {
        reason: metric(text, "vllm:request_success_total", {"finished_reason": reason})
        for reason in ("stop", "length", "abort")
    }
    assert counted == {"stop": 2, "length": 2, "abort": 0}


async def test_death_resets_streams_and_a_new_life_is_cold_on_the_same_port(
    http: aiohttp.ClientSession,
) -> None:
    async with SimReplica(quick_config(engine_class=SLOW)) as replica:
        address, started = replica.address, replica._start_time_s
        body = chat_body("hi " * 500, stream=True, max_tokens=5000, ignore_eos=True)
        async with http.post(replica.url + CHAT, json=body) as response:
            await response.content.readuntil(b"\n\n")
            await replica.kill()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(http, replica, chat_body("hi"))
        await replica.start()
        assert replica.address == address
        assert replica._start_time_s > started
        _, answer = await post(http, replica, chat_body("hi " * 500, max_tokens=1))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


# Text


async def test_a_replica_that_fails_does_so_inside_a_200_until_it_is_healed(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{replica.url}/fault?failing=1"):
        pass
    async with http.post(replica.url + CHAT, json=chat_body("hi", stream=True)) as response:
        assert (response.status, "The engine is broken." in await response.text()) == (200, True)
    async with http.post(f"{replica.url}/fault?failing=0"):
        pass
    assert await stream(http, replica, chat_body("hi", stream=True))


def read(body: object) -> api.SimRequest:
    return api.parse(PARSERS[0], json.dumps(body).encode())


@given(st.lists(st.text(max_size=80), min_size=1, max_size=5), st.integers(1, 60))
def test_a_conversation_goes_on_where_its_cache_ends(turns: list[str], answer_tokens: int) -> None:
    turns = turns if len(turns) % 2 else turns[:-1]
    first = read(chat_body(*turns))
    words = api.answer_words(first, answer_tokens)
    path = api.chain_blocks(first, words, 4)
    second = read(chat_body(*turns, "".join(words), "and then?"))
    longer = api.chain_blocks(second, [], 4)
    assert second.text.startswith(first.text + "".join(words).encode())
    assert longer[: len(path)] == path
    assert len(path) == (len(first.text) // 4 + answer_tokens) // 4
    assert not set(path) & set(api.chain_blocks(read({**chat_body(*turns), "model": "m"}), words, 4))


# The command

SIM = (sys.executable, "-m", "epp.cli", "lab", "sim")


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_a_replica_may_have_a_kv_cache_of_another_size() -> None:
    small, usual = replica_configs(parse("--replica", "name=a,kv_tokens=5000", "--replica", "name=b"))
    assert small.engine_class == replace(usual.engine_class, kv_capacity_tokens=5_000)


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (["nam=x"], "nam: unknown key"),
        (["name=x,port=http"], "http"),
        (["name=x,class=b200"], "class: unknown class 'b200' .*h100"),
        (["name=x", "name=x"], "name: 'x' is given twice"),
        (["name=x,rtt_ms=inf"], "x: rtt_ms must be"),
        (["name=x,port=70000"], "x: port 70000 is not"),
        (["name=x,model="], "x: name and models"),
        (["name=x,kv_tokens=many"], "many"),
    ],
)
def test_wrong_options_are_named_with_the_fix(replicas: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replica_configs(parse(*(word for text in replicas for word in ("--replica", text))))


def test_the_command_prints_addresses_serves_and_stops_cleanly() -> None:
    command = [*SIM, "--replica", "name=a,rtt_ms=1", "--replica", "name=b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert [line.split(":")[0] for line in lines] == ["a", "b"]
            for line in lines:
                body = json.dumps(chat_body("hi " * 8000, stream=True, max_tokens=3)).encode()
                with urlopen(line.split()[1] + CHAT, body, timeout=240) as response:  # noqa: S310 - loopback
                    assert response.read().count(b"data: {") == 4
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=240)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
