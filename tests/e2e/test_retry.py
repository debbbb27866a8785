"""Retries from the OpenAI SDK through a real Envoy and picker to engines that answer wrongly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import openai
import pytest

from epp.client import first_correct_async
from epp.envoy.settings import Variant
from tests.e2e.test_models import chat_answer
from tests.kit.engines import Answered, Asked, Engine, EngineServing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def says(text: str) -> Callable[[Asked], Answered]:
    def answer(asked: Asked) -> Answered:
        told = json.loads(chat_answer(asked))
        told["choices"][0]["message"]["content"] = text
        # What an engine calls so is not believed.
        return Answered([json.dumps(told).encode()], headers={"x-epp-served-model": "forged"})

    return answer


@pytest.mark.parametrize("variant", list(Variant))
async def test_every_model_is_tried_once_until_one_is_right(variant: Variant, tmp_path: Path) -> None:
    engines = [
        Engine({"chat": f"model-{name}"}, answer=says("right" if name == "c" else "wrong")) for name in "abc"
    ]
    success = {"a": 0.9, "b": 0.6, "c": 0.3}
    cells = {
        f"model-{name}": [{"language": "en", "bucket_tokens": 1024, "success": chance}]
        for name, chance in success.items()
    }
    (tmp_path / "capability.yaml").write_text(json.dumps({"models": cells}))
    async with EngineServing(
        tmp_path,
        engines,
        variant=variant,
        envoy={"served_model_header": True},
        policy={"name": "laar", "tie_band": 0.0},
        capability={"file": "capability.yaml", "tell_model": True},
    ) as serving:
        client = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="-", max_retries=0)
        async with client:
            found = await first_correct_async(
                client.chat.completions,
                lambda answer: answer.choices[0].message.content == "right",
                model="chat",
                messages=[{"role": "user", "content": "What is the value of the key?"}],
            )
        assert [attempt.model for attempt in found.attempts] == ["model-a", "model-b", "model-c"]
        assert found.correct
        assert found.answer.model == "chat"
        assert all(attempt.decision_id for attempt in found.attempts)
        for engine in engines:
            (asked,) = engine.asked
            assert "x-epp-tried-models" not in asked.headers


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_name_for_a_model_that_is_more_than_a_headers_value_adds_no_header(
    variant: Variant, tmp_path: Path
) -> None:
    async with EngineServing(
        tmp_path,
        [Engine({}, answer=says("hi"))],
        variant=variant,
        envoy={"served_model_header": True},
        policy={"name": "least-request"},
        capability={"tell_model": True},
    ) as serving:
        body = {"model": "a\r\nset-cookie: x=1", "messages": [{"role": "user", "content": "hello"}]}
        url = f"{serving.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
            assert answer.status == 200
            assert "set-cookie" not in answer.headers
