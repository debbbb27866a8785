"""Clients: HTTP/1.0, the list of models, and bodies that engines take."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.cases.engine import JSON, CaseEngine, Cases, Reply, answered, event
from tests.kit.replicas import MODEL

if TYPE_CHECKING:
    from pathlib import Path


async def http_1_0(folder: Path) -> float:
    """How many of two requests in HTTP/1.0, whole and streamed, are not served."""

    def answer(_path: str, fields: dict[str, Any]) -> Reply:
        streamed = Reply.stream(event({"choices": [{"delta": {"content": "good"}}]}), event("[DONE]"))
        return streamed if fields.get("stream") else Reply.of(answered())

    async with Cases(folder, [CaseEngine(reply=answer)]) as fleet:
        host, _, port = fleet.url.removeprefix("http://").rpartition(":")
        failed = 0
        for stream in (False, True):
            body = json.dumps(
                {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
            )
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body.encode())
            said = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            failed += not (b" 200 " in said.partition(b"\r\n")[0] and b"good" in said)
        return failed


async def model_list(folder: Path) -> float:
    """How many of four names are missing in the list of models, or not found by name, whichever are more."""
    engines = [CaseEngine(listed=names, models=names) for names in (["a", "b"], ["b", "c"], ["d"])]
    names = ["a", "b", "c", "d"]
    async with Cases(folder, engines) as fleet:
        async with fleet.http.get(fleet.url + "/v1/models") as answer:
            listed = {model["id"] for model in (await answer.json())["data"]}
        missing = 0
        for name in names:
            async with fleet.http.get(f"{fleet.url}/v1/models/{name}") as answer:
                missing += answer.status != 200
        return max(missing, len(set(names) - listed))


async def bodies(folder: Path) -> float:
    """How many of five bodies are refused that engines take."""
    message = {"role": "user", "content": "hi"}
    asked: list[tuple[str, str]] = [
        ("/v1/chat/completions", json.dumps({"messages": [message]})),
        ("/v1/completions", json.dumps({"prompt": "hi"})),
        (
            "/v1/chat/completions",
            json.dumps({"model": MODEL, "messages": [message], "temperature": float("nan")}),
        ),
        (
            "/v1/chat/completions",
            json.dumps(
                {
                    "model": MODEL,
                    "messages": [message, {"role": "assistant", "content": "yes", "refusal": False}, message],
                }
            ),
        ),
        ("/v1/messages", json.dumps({"model": MODEL, "messages": [message]})),
    ]
    async with Cases(folder, [CaseEngine(listed=[MODEL], models=[MODEL])]) as fleet:
        refused = 0
        for path, body in asked:
            async with fleet.http.post(fleet.url + path, data=body.encode(), headers=JSON) as answer:
                refused += answer.status != 200
        return refused
