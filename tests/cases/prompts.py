"""Prompts as engines render them, and the sequences that one request asks for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.cases.engine import CaseEngine, Cases, Reply, answered
from tests.kit.records import recorded
from tests.kit.replicas import MODEL
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

_LONG = "words that fill some blocks of the cache " * 60
_CALL = {"name": "f", "arguments": '{"a":1}'}


def _history(call: dict[str, Any] | None = None, **told: Any) -> dict[str, Any]:
    """A chat whose second turn calls a tool; what tells two of them apart comes before a long tail."""
    function = {"id": "c1", "type": "function", "function": call or _CALL}
    assistant = {"role": "assistant", "content": None, "tool_calls": [function], **told}
    calls = assistant["tool_calls"]
    result = {"role": "tool", "tool_call_id": calls[0].get("id", "c1"), "content": _LONG}
    return {"messages": [{"role": "user", "content": "do it"}, assistant, result]}


def _call(**told: Any) -> list[dict[str, Any]]:
    return [{"id": "c1", "type": "function", "function": _CALL, **told}]


def _said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "user", "content": _LONG}]}


def _image(query: str) -> dict[str, Any]:
    url = f"https://b.s3.amazonaws.com/cat.png?X-Amz-Date=20261128&X-Amz-Signature={query}"
    return _said([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it"}])


#: Prompts that engines render alike.
_ALIKE = (
    (_history(), _history({**_CALL, "arguments": '{"a": 1}'})),
    (_history(), _history({**_CALL, "arguments": {"a": 1}})),
    (_history(content=None), _history(content="")),
    (_history(), _history(tool_calls=_call(id="made-anew"))),
    (_history(), _history(tool_calls=_call(index=0))),
    (
        _said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        _said([{"type": "text", "text": "a\nb"}]),
    ),
    (_image("11"), _image("22")),
)


async def _expected(fleet: Cases, folder: Path, count: int, body: dict[str, Any]) -> tuple[float, float]:
    """Tokens of a prompt and how many of them are expected to be cached, by the decision's record."""
    await fleet.post({"model": MODEL, **body})
    found: list[dict[str, Any]] = []

    def told() -> bool:
        found[:] = [one for one in recorded(folder / "records") if one["kind"] == "decision"]
        return len(found) >= count

    await until(told)
    return found[-1]["request"]["prompt_tokens"], found[-1]["signals"]["cached_tokens"][0]


async def prompts(folder: Path) -> float:
    """How many pairs of prompts are told apart that engines render alike, or priced otherwise than engines do."""
    async with Cases(folder, [CaseEngine()]) as fleet:
        wrong, count = 0, 0
        for number, (first, second) in enumerate(_ALIKE):
            salt = {"cache_salt": str(number)}
            await _expected(fleet, folder, count + 1, first | salt)
            tokens, cached = await _expected(fleet, folder, count + 2, second | salt)
            count += 2
            wrong += cached < 0.8 * tokens
        cut = {**_said(_LONG), "truncate_prompt_tokens": 16}
        tokens, _ = await _expected(fleet, folder, count + 1, cut)
        wrong += tokens > 32
        lists = {**_said("hi"), "chat_template_kwargs": {"languages": ["de", "en"]}}
        tokens, _ = await _expected(fleet, folder, count + 2, lists)
        return wrong + (tokens <= 0)


async def sequences(folder: Path) -> float:
    """How many of eight sequences of one request are not among those that the endpoint runs."""
    answer = Reply([1.5, b'{"choices": []}'])
    engine = CaseEngine(reply=lambda _path, fields: answer if fields.get("n") else Reply.of(answered()))
    async with Cases(folder, [engine]) as fleet:
        long = {"model": MODEL, "n": 8, "messages": [{"role": "user", "content": "hi"}]}
        asked = asyncio.ensure_future(fleet.post(long))
        await until(lambda: engine.asked)
        await _expected(fleet, folder, 2, _said("while it runs"))
        decisions = [one for one in recorded(folder / "records") if one["kind"] == "decision"]
        await asked
        return 8.0 - float(decisions[-1]["signals"]["running_requests"][0])
