"""Requests as clients send them, through a real Envoy to the endpoint that the picker chose."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import openai
import pytest

from epp.envoy.settings import Variant
from tests.kit.picker import CHAT, Serving
from tests.kit.replicas import MODEL, quick_config

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_openai_sdk_streams_unmodified(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        client = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True, max_tokens=8
            )
            words = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
            assert len("".join(word or "" for word in words)) > 0
            answer = await client.completions.create(model=MODEL, prompt="once upon a time", max_tokens=4)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 4
            assert [model.id async for model in client.models.list()] == [MODEL]
            with pytest.raises(openai.BadRequestError, match="messages"):
                await client.chat.completions.create(model=MODEL, messages="not a list")  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_conversation_stays_where_its_prefix_is_cached(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, variant=variant) as serving:
        text = "a long shared beginning of a conversation. " * 400
        served = set()
        for turn in range(5):
            text += f"turn {turn}: something more to say. "
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
            async with serving.http.post(serving.url + CHAT, json=body) as answer:
                assert answer.status == 200
                served.add(answer.headers["x-served-by"])
                usage = (await answer.json())["usage"]
        assert len(served) == 1
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_prompt_with_half_of_a_surrogate_pair_is_answered(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, replicas=[quick_config("a")], variant=variant) as serving:
        assert (await serving.chat("cut within a face: \ud83d"))[0] == 200


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": "sim-model", "messages": [', "JSON"),
        (b"[]", ""),
        (b'{"model": "sim-model"}', "messages"),
        (b'{"model": 5, "messages": []}', "model"),
        (b"", ""),
    ],
)
async def test_a_bad_body_is_told_in_the_words_of_the_api(
    tmp_path: Path, variant: Variant, body: bytes, words: str
) -> None:
    async with Serving(tmp_path, replicas=[quick_config("a")], variant=variant) as serving:
        before = serving.replicas[0].requests
        async with serving.http.post(
            serving.url + CHAT, data=body, headers={"content-type": "application/json"}
        ) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert words in error["message"]
        assert serving.replicas[0].requests == before, "no upstream call"
        assert (await serving.chat())[0] == 200, "the next request is served"


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_what_is_not_understood_passes_through_balanced(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, variant=variant) as serving:
        async with serving.http.get(f"{serving.url}/v1/models") as answer:
            assert answer.status == 200
        for number in range(6):
            async with serving.http.post(
                f"{serving.url}/some/other/path", data=b"\x00\x01" * number
            ) as answer:
                assert answer.status == 404, "the replica's own answer"
        assert await serving.picker.metric("epp_decisions_total", basis="balance") >= 5


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_body_of_20_mb_is_priced_and_arrives_whole(tmp_path: Path, variant: Variant) -> None:
    roomy = quick_config("a")
    async with Serving(
        tmp_path, replicas=[roomy], variant=variant, envoy={"message_timeout_ms": 10_000}
    ) as serving:
        status, body = await serving.chat("0123456789abcdef" * (20 * 1024 * 1024 // 16))
        assert status == 400, "the replica's context is shorter, and it says so itself"
        assert "context length" in body["error"]["message"]
        assert await serving.picker.metric("epp_decisions_total", basis="policy") == 1


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with Serving(tmp_path, envoy={"max_body_bytes": 100_000}) as serving:
        status, _ = await serving.chat("x" * 200_000)
        assert status == 413
        assert (await serving.chat())[0] == 200


async def test_a_thousand_streams_at_once(tmp_path: Path) -> None:
    async with Serving(tmp_path, envoy={"message_timeout_ms": 10_000}) as serving:

        async def stream(number: int) -> bool:
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"{number} of a thousand"}],
                "stream": True,
                "max_tokens": 8,
            }
            async with serving.http.post(serving.url + CHAT, json=body) as answer:
                return answer.status == 200 and (await answer.read()).rstrip().endswith(b"[DONE]")

        assert all(await asyncio.gather(*(stream(number) for number in range(1000))))
        assert await serving.picker.metric("epp_decisions_total", policy="gorgo-ms") == 1000
        await serving.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)
        assert sum(replica.requests for replica in serving.replicas) >= 1000


async def test_a_decision_can_be_explained_afterwards(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        await serving.chat("why did this go where it went?")
        async with serving.http.get(f"http://{serving.picker.http}/decisions/last") as answer:
            record = json.loads(await answer.read())
        assert record["policy"] == "gorgo-ms"
        assert set(record["endpoints"]) == {replica.address for replica in serving.replicas}
        costs = [sum(column[row] for column in record["terms"].values()) for row in range(3)]
        assert costs == pytest.approx(record["costs"])
