"""A real engine as a child process that can be killed; what it counted beside what the picker counted and believed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from epp.envoy.child import Child
from epp.records.schema import join
from tests.kit.records import recorded
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.kit.picker import Serving

#: Of the requests of `generations`.
APIS = {"openai-chat", "openai-completions", "openai-responses", "anthropic-messages"}


class EngineProcess:
    """An engine, as an async context manager that waits until it is healthy.

    Args:
        program: that is run, by its whole path.
        words: its arguments, which name the port.
        port: where it listens.
        folder: where its log goes.
    """

    def __init__(self, program: str, words: Sequence[str], port: int, folder: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self._child = Child(f"engine-{port}", list(words), folder, (program,))

    async def __aenter__(self) -> Self:
        await self._child.__aenter__()
        try:
            async with asyncio.timeout(300), aiohttp.ClientSession() as http:
                while not await self._healthy(http):
                    self._child.check()
                    await asyncio.sleep(0.1)
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """End it and its own children as a crash of their machine would; it may be entered again."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except (ProcessLookupError, RuntimeError):
            return
        await self._child.__aexit__()

    async def _healthy(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"http://{self.address}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


_TOOL = {
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def generations(model: str, text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return requests of each API that generates, by a name: path and body."""
    turns = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Yes, 是的."},
        {"role": "user", "content": "And now?"},
    ]
    system = {"role": "system", "content": "Be brief."}
    chat = {"messages": [system, *turns], "max_tokens": 4}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    completion = {"prompt": text, "max_tokens": 4}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Yes, 是的."}],
    }
    response = {"instructions": "Be brief.", "input": [turns[0], said, turns[2]], "max_output_tokens": 4}
    message = {"system": "Be brief.", "messages": turns, "max_tokens": 4}
    tools = {"tools": [{"type": "function", "function": _TOOL}], "tool_choice": "none"}
    cases = {
        "chat": ("/v1/chat/completions", chat),
        "chat, streamed": ("/v1/chat/completions", {**chat, **streamed}),
        "chat with tools": ("/v1/chat/completions", {**chat, **tools}),
        "completions": ("/v1/completions", completion),
        "completions, streamed": ("/v1/completions", {**completion, **streamed}),
        "responses": ("/v1/responses", response),
        "responses, streamed": ("/v1/responses", {**response, "stream": True}),
        "messages": ("/v1/messages", message),
        "messages, streamed": ("/v1/messages", {**message, "stream": True}),
    }
    return {name: (path, {"model": model, **body}) for name, (path, body) in cases.items()}


async def post(serving: Serving, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask, and expect status 200; the answer, or ``{}`` for a stream."""
    async with serving.http.post(serving.url + path, json=body) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
        told: dict[str, Any] = json.loads(raw) if answer.content_type == "application/json" else {}
        return told


async def converse(
    serving: Serving, model: str, *, conversations: int, turns: int, system: str = "Be brief."
) -> None:
    """Lead so many conversations of a thousand tokens a turn, a turn of each after the other."""
    histories = [[{"role": "system", "content": system}] for _ in range(conversations)]
    for turn in range(turns):
        for number, history in enumerate(histories):
            text = " ".join(f"{number} said {turn * 100 + word} things" for word in range(100))
            history.append({"role": "user", "content": text})
            body = {"model": model, "messages": history, "max_tokens": 8}
            answer = await post(serving, "/v1/chat/completions", body)
            said = answer["choices"][0]["message"]["content"]
            # Templates disagree on which control characters are white space to trim; nonsense has them.
            said = "".join(filter(str.isprintable, said)).strip()
            history.append({"role": "assistant", "content": said})


class Ends(Counter[str]):
    """How streams ended: whole, cut, or by a status; ``open`` are the clients whose stream has begun and not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()


@asynccontextmanager
async def streaming(serving: Serving, model: str, *, clients: int, tokens: int) -> AsyncIterator[Ends]:
    """Clients with a stream each, one after the other, of which each has been answered once."""
    ends, answered, stop = Ends(), set[int](), asyncio.Event()

    async def one(number: int) -> str:
        messages = [{"role": "user", "content": f"{number} asks {ends.total()}"}]
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with serving.http.post(f"{serving.url}/v1/chat/completions", json=body) as answer:
                answered.add(number)
                ends.open.add(number)
                whole = (await answer.read()).rstrip().endswith(b"data: [DONE]")
                return "whole" if whole else str(answer.status)
        except aiohttp.ClientError:
            return "cut"
        finally:
            ends.open.discard(number)

    async def client(number: int) -> None:
        while not stop.is_set():
            ends[await one(number)] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
        await until(lambda: len(answered) == clients)
        yield ends
        stop.set()


@dataclass(frozen=True)
class Seen:
    """A request that ended, by its records.

    Attributes:
        api: of the request.
        prompt_tokens: as the picker counted.
        believed_tokens: that it expected in the cache of its pick.
        engine_tokens: of the prompt, as the engine counted; None where it does not tell.
        cached_tokens: that the engine found in its cache, likewise.
    """

    api: str
    prompt_tokens: int
    believed_tokens: float
    engine_tokens: int | None
    cached_tokens: int | None


def seen(folder: Path) -> list[Seen]:
    """Read the requests that ended from the picker's records."""
    return [
        Seen(
            str(made["api"]),
            made["request"]["prompt_tokens"],
            made["signals"]["cached_tokens"][made["chosen"]],
            outcome["prompt_tokens"],
            outcome["cached_tokens"],
        )
        for made, outcome in ((one.decision, one.outcome) for one in join(recorded(folder)))
        if outcome is not None
    ]


def precision_and_recall(requests: Sequence[Seen]) -> tuple[float, float]:
    """Compare tokens believed with those found: shares of the believed and of the found that are both; NaN of none."""
    pairs = [(one.believed_tokens, one.cached_tokens) for one in requests if one.cached_tokens is not None]
    both = sum(min(pair) for pair in pairs)
    believed, found = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0)
    return both / believed if believed else math.nan, both / found if found else math.nan
