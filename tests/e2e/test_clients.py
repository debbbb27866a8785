"""Clients as they are, with nothing changed but the address: every API that each of them speaks, and its own errors."""

from __future__ import annotations

import gc
import warnings
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from tests.kit.envoy import require_envoy
from tests.kit.picker import Serving
from tests.kit.replicas import MODEL, quick_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

# Each test loads its client: together they take as long as the collection of all other tests.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # What clients warn of themselves is theirs.
    pytest.mark.filterwarnings("ignore"),
]
#: Asked twice: of the second prompt all but the last block is cached. An answer has two tokens.
TEXT, TOKENS = "tell me more " * 100, 2
CHAT: Any = [{"role": "user", "content": TEXT}]
CACHED = range(300, 340)


@asynccontextmanager
async def two_replicas(folder: Path) -> AsyncIterator[Serving]:
    require_envoy()
    replicas = [quick_config(name) for name in "ab"]
    # A client takes seconds to load, in which replicas answer no probe: one late by three intervals goes last.
    probe = {"interval_s": 60.0, "timeout_s": 60.0}
    async with Serving(folder, replicas=replicas, policy={"name": "prefix-cache"}, probe=probe) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    async with two_replicas(tmp_path_factory.mktemp("clients")) as running:
        yield running
    cleanup: Any = import_module("litellm.llms.custom_httpx.async_client_cleanup")
    await cleanup.close_litellm_async_clients()
    import_module("litellm").in_memory_llm_clients_cache.flush_cache()
    with warnings.catch_warnings(action="ignore"):  # clients leave connections open even so
        gc.collect()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Another, whose engines are left alone for a while by whoever asks next."""
    async with two_replicas(tmp_path_factory.mktemp("refusals")) as running:
        yield running


async def test_openai(serving: Serving) -> None:
    openai: Any = import_module("openai")
    client: Any = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
    async with client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        chat = await client.chat.completions.create(model=MODEL, messages=CHAT)
        async with client.chat.completions.stream(
            model=MODEL, messages=CHAT, stream_options={"include_usage": True}
        ) as chat_stream:
            streamed = await chat_stream.get_final_completion()
        assert streamed.choices[0].message.content == chat.choices[0].message.content
        assert streamed.usage.prompt_tokens_details.cached_tokens in CACHED

        text = await client.completions.create(model=MODEL, prompt=TEXT, max_tokens=TOKENS)
        chunks = await client.completions.create(model=MODEL, prompt=TEXT, max_tokens=TOKENS, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in chunks]) == text.choices[0].text

        response = await client.responses.create(model=MODEL, input=TEXT, instructions="s")
        async with client.responses.stream(model=MODEL, input=TEXT, instructions="s") as response_stream:
            final = await response_stream.get_final_response()
        assert final.output_text == response.output_text
        assert final.usage.input_tokens_details.cached_tokens in CACHED

        embedded = await client.embeddings.create(model=MODEL, input=["a", "b"])
        assert [len(one.embedding) for one in embedded.data] == [16, 16]


async def test_anthropic(serving: Serving) -> None:
    anthropic: Any = import_module("anthropic")
    async with anthropic.AsyncAnthropic(base_url=serving.url, api_key="none", max_retries=0) as client:
        counted = await client.messages.count_tokens(model=MODEL, messages=CHAT, system="s")
        asked: Any = {"model": MODEL, "messages": CHAT, "system": "s", "max_tokens": TOKENS}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            words = [word async for word in stream.text_stream]
            final = await stream.get_final_message()
        assert len(words) == TOKENS
        assert final.content[0].text == whole.content[0].text == "".join(words)
        assert final.stop_reason == "max_tokens"
        assert final.usage.cache_read_input_tokens in CACHED
        assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens


@pytest.mark.parametrize("responses", [False, True])
async def test_langchain_chats(serving: Serving, responses: bool) -> None:
    langchain_openai: Any = import_module("langchain_openai")
    chat = langchain_openai.ChatOpenAI(
        base_url=f"{serving.url}/v1",
        api_key="none",
        model=MODEL,
        use_responses_api=responses,
        stream_usage=True,
    )
    whole = await chat.ainvoke(TEXT)
    chunks = [chunk async for chunk in chat.astream(TEXT)]
    streamed = sum(chunks[1:], chunks[0])
    assert whole.text == streamed.text
    assert streamed.usage_metadata["input_token_details"]["cache_read"] in CACHED


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
async def test_litellm_chats(serving: Serving, provider: str) -> None:
    litellm: Any = import_module("litellm")
    base = serving.url if provider == "anthropic" else f"{serving.url}/v1"
    asked: Any = {"model": f"{provider}/{MODEL}", "messages": CHAT, "api_base": base, "api_key": "none"}
    asked["max_tokens"] = TOKENS  # for Anthropic it would ask for 128,000
    whole = await litellm.acompletion(**asked)
    stream = await litellm.acompletion(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    streamed = litellm.stream_chunk_builder(chunks)
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.usage.prompt_tokens_details.cached_tokens in CACHED


async def ask_openai(url: str, model: str, messages: Any) -> object:
    openai: Any = import_module("openai")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await client.chat.completions.create(model=model, messages=messages)


async def ask_anthropic(url: str, model: str, messages: Any) -> object:
    anthropic: Any = import_module("anthropic")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        return await client.messages.create(model=model, messages=messages, max_tokens=1)


async def ask_langchain(url: str, model: str, messages: Any) -> object:
    langchain_openai: Any = import_module("langchain_openai")
    chat = langchain_openai.ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_retries=0)
    return await chat.ainvoke(messages)


async def ask_litellm(url: str, model: str, messages: Any) -> object:
    litellm: Any = import_module("litellm")
    named = f"hosted_vllm/{model}"
    return await litellm.acompletion(named, messages, api_base=f"{url}/v1", api_key="none", max_retries=0)


#: Where each client's errors are, and its name for 503.
ERRORS: dict[Callable[[str, str, Any], Awaitable[object]], tuple[str, str]] = {
    ask_openai: ("openai", "InternalServerError"),
    ask_anthropic: ("anthropic", "ServiceUnavailableError"),
    ask_langchain: ("openai", "InternalServerError"),
    ask_litellm: ("litellm", "ServiceUnavailableError"),
}


@pytest.fixture(params=ERRORS, ids=lambda ask: ask.__name__)
def refused(request: pytest.FixtureRequest, refusing: Serving) -> Callable[..., Awaitable[Any]]:
    """Ask what must be refused; the client's exception of a name."""

    module, unavailable = ERRORS[request.param]

    async def ask(error: str = unavailable, model: str = MODEL, messages: Any = CHAT) -> Any:
        with pytest.raises(getattr(import_module(module), error)) as caught:
            await request.param(refusing.url, model, messages)
        return caught.value

    return ask


async def test_a_request_that_is_none(refused: Callable[..., Awaitable[Any]]) -> None:
    assert "messages" in str(await refused("BadRequestError", messages=[]))
    assert "other" in str(await refused("NotFoundError", model="other"))


async def test_engines_that_want_to_be_left_alone(
    refusing: Serving, refused: Callable[..., Awaitable[Any]]
) -> None:
    for replica in refusing.replicas:
        replica.refusal = (429, 1)
    error = await refused("RateLimitError")
    headers = getattr(error, "litellm_response_headers", None) or error.response.headers
    assert headers["retry-after"] == "1"
    for replica in refusing.replicas:
        replica.refusal = None
        await refusing.picker.until_metric(
            "epp_endpoint_unavailable",
            lambda value: value == 0,
            endpoint=replica.address,
            reason="retry-after",
        )


async def test_a_pool_that_drains(refusing: Serving, refused: Callable[..., Awaitable[Any]]) -> None:
    specs, ready = refusing.specs(), "llm_d_epp_ready_endpoints"
    refusing.write_pool([replace(spec, draining=True) for spec in specs])
    await refusing.picker.until_metric(ready, lambda value: value == 0)
    assert (await refused()).status_code == 503
    refusing.write_pool(specs)
    await refusing.picker.until_metric(ready, lambda value: value == len(specs))
