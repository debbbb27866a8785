"""Several models in one pool: what engines are asked, and what clients see of it. A real Envoy and picker."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epp.envoy.settings import Variant
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.envoy import require_envoy
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORGED = dict.fromkeys(
    (
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-served",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-scores",
        "x-epp-decision-id",
        "x-epp-served-model",
        "x-epp-untried-models",
    ),
    "evil",
)


def chat_answer(asked: Asked, **fields: Any) -> bytes:
    message = {"role": "assistant", "content": 'my "model": "is" secret'}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return json.dumps(
        {"id": "c-1", "object": "chat.completion", "created": 1, "model": asked.fields["model"], "choices": [choice],
         "usage": usage, **fields}
    ).encode()  # fmt: skip


def whole(asked: Asked) -> Answered:
    return Answered([chat_answer(asked)])


def events(size: int) -> Callable[[Asked], Answered]:
    """A streamed chat, cut into pieces of this many bytes."""

    def answer(asked: Asked) -> Answered:
        common = {
            "id": "c-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": asked.fields["model"],
        }
        deltas = [
            {"role": "assistant", "content": ""},
            {"content": 'say "model": "x"'},
            {"content": " né 你"},
        ]
        documents = [common | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        documents.append(
            common | {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
        )
        body = b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents)
        body += b"data: [DONE]\n\n"
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        return Answered(pieces, "text/event-stream; charset=utf-8", chunked=True)

    return answer


def engines() -> list[Engine]:
    return [
        Engine({"chat": "llama-a", 'Größe "7B"': "org/qwen"}, {"sql": "lora-a"}),
        Engine({"chat": "llama-b/with-a-longer-name"}, ["sql"]),
    ]


#: What either engine calls its models.
NAMES = (("llama-a", "org/qwen", "lora-a"), ("llama-b/with-a-longer-name", "sql"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Variant))
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineServing]:
    require_envoy()
    folder = tmp_path_factory.mktemp(request.param)
    async with EngineServing(
        folder, engines(), variant=request.param, policy={"name": "round-robin"}
    ) as serving:
        yield serving


@pytest.fixture
def serving(shared: EngineServing) -> EngineServing:
    """Two engines that nobody has asked anything, for every test."""
    for engine in shared.engines:
        engine.asked.clear()
        engine.answer = whole
    return shared


def answers(serving: EngineServing, answer: Callable[[Asked], Answered]) -> None:
    for engine in serving.engines:
        engine.answer = answer


async def test_each_engine_is_asked_for_its_own_name_and_clients_see_theirs(serving: EngineServing) -> None:
    for number in range(2):
        for public in ("chat", "chat", "sql", "sql"):
            status, body = await serving.chat(
                f"question {number}", model=public, headers={"accept-encoding": "gzip"}
            )
            assert (status, body["model"]) == (200, public)
            assert body["choices"][0]["message"]["content"] == 'my "model": "is" secret'
    status, body = await serving.chat(model='Größe "7B"')
    assert (status, body["model"]) == (200, 'Größe "7B"')
    asked = [one for engine in serving.engines for one in engine.asked]
    assert {(one.upstream, one.fields["model"]) for one in asked} == {
        (engine.address, name) for engine, names in zip(serving.engines, NAMES, strict=True) for name in names
    }
    for one in asked:
        assert int(one.headers.get("content-length", len(one.body))) == len(one.body)
        assert one.fields["messages"][0]["content"].startswith(("question", "hello"))
        if one.fields["model"] not in ("sql", "org/qwen"):  # rewritten, and asked with an encoding
            assert one.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_streams_are_restored_however_they_are_cut(serving: EngineServing, size: int) -> None:
    answers(serving, events(size))
    openai: Any = import_module("openai")
    client = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert [chunk.model for chunk in chunks] == ["chat"] * 4
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert words == ["", 'say "model": "x"', " né 你"]
    assert serving.engines[0].asked or serving.engines[1].asked


async def test_an_unknown_model_is_404_in_openais_words(serving: EngineServing) -> None:
    openai: Any = import_module("openai")
    client = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
    async with client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(
                model="llama-a", messages=[{"role": "user", "content": "hi"}]
            )
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    told = json.dumps(caught.value.body)
    for secret in ("llama-b", "lora", "qwen", "127.0.0.1", "chat", "sql"):
        assert secret not in told
    assert not any(engine.asked for engine in serving.engines)


async def test_an_engines_own_reserved_headers_reach_no_client(serving: EngineServing) -> None:
    answers(serving, lambda _: Answered([b"{}"], headers={**FORGED, "x-served-by": "engine"}))
    async with serving.http.post(serving.url + CHAT, json=chat_body("hi", model="chat")) as got:
        assert got.status == 200
        assert got.headers["x-served-by"] == "engine"
        assert "evil" not in got.headers.values()
        assert len(got.headers.getall("x-epp-decision-id")) == 1
