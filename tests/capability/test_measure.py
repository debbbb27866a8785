"""Engines asked lookups: what is kept of their answers, what is asked again, and what of errors is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from epp.cli import main
from epp.types import SuccessCell, length_bucket
from epp_lab.capability.fit import fit
from epp_lab.capability.results import Row, read_rows
from epp_lab.sim.lookup import Lookup
from tests.kit.replicas import quick_config, running_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SMALL = ("--languages", "en", "ja", "--lengths", "2048", "1024", "--questions", "6")
KEY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def measure(folder: Path, *words: object) -> int:
    """Run the command in a thread, so that this loop can answer it."""
    out = folder / "answers.jsonl"
    return await asyncio.to_thread(main, [*map(str, ("capability", "measure", *words, "--out", out))])


def kept(folder: Path) -> list[Row]:
    return read_rows(folder / "answers.jsonl")


@dataclass
class Engine:
    """An engine of 2 bytes a token that knows every answer, and dies when ``lives`` are used up.

    Attributes:
        lives: answers that it gives before it refuses.
        refuse: how it refuses.
        changes: members of its answers that are replaced.
        prompts: those answered.
        keys: authorizations that came.
    """

    lives: int = 1000
    refuse: Callable[[], web.Response] = lambda: web.json_response(
        {"error": "CUDA out of memory"}, status=500
    )
    changes: dict[str, Any] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    url: str = ""

    async def chat(self, request: web.Request) -> web.Response:
        asked = await request.json()
        prompt = asked["messages"][0]["content"]
        self.keys.add(request.headers.get("authorization"))
        if self.lives <= len(self.prompts):
            return self.refuse()
        self.prompts.append(prompt)
        key = KEY.findall(prompt)[-1]
        (value,) = re.findall(rf'"{key}": "({KEY.pattern})"', prompt)
        answer = {
            "choices": [{"message": {"content": f"It is {value}."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(prompt) // 2},
        }
        return web.json_response(answer | self.changes)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "phi"}]})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/v1/chat/completions", self.chat), web.get("/v1/models", self.models)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_replicas_are_measured_as_right_as_they_are(tmp_path: Path) -> None:
    chances = {
        name: {SuccessCell(language, tokens): chance for language in ("en", "ja") for tokens in (1024, 2048)}
        for name, chance in (("never", 0.0), ("often", 0.7), ("always", 1.0))
    }
    configs = [
        quick_config(name, models=(name,), lookup=Lookup(name, cells)) for name, cells in chances.items()
    ]
    async with running_fleet(configs) as fleet:
        assert await measure(tmp_path, *(replica.url for replica in fleet), *SMALL, "--questions", "40") == 0
    rows = kept(tmp_path)
    asked = Counter((row.model, row.language, length_bucket(row.prompt_tokens)) for row in rows)
    assert asked == {
        (name, language, tokens): 40
        for name in chances
        for language in ("en", "ja")
        for tokens in (1024, 2048)
    }
    right = Counter(row.model for row in rows if row.correct)
    assert right["never"] == 0
    assert right["often"] == pytest.approx(0.7 * 160, abs=20)
    assert right["always"] == 160
    assert set(fit(rows).models) == set(chances)


async def test_a_measurement_goes_on_where_an_engine_died_and_asks_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(lives=8)
    async with engine.running() as url:
        assert await measure(tmp_path, url, *SMALL) == 1
        error = capsys.readouterr().err
        assert f"epp: phi: {url}/v1/chat/completions: HTTP 500: " in error
        assert "CUDA out of memory" in error
        before = kept(tmp_path)
        assert {length_bucket(row.prompt_tokens) for row in before} == {1024}  # the shorter ones first
        engine.lives = 1000
        assert await measure(tmp_path, f"{url}/v1", *SMALL) == 0
        assert await measure(tmp_path, url, *SMALL) == 0
    rows = kept(tmp_path)
    assert rows[: len(before)] == before
    assert len({row.question for row in rows}) == len(rows) == 24
    assert all(row.correct for row in rows)
    probes = 2  # one of each run that had something to ask
    assert len(engine.prompts) == len(rows) + probes
    assert sorted(Counter(engine.prompts).values()) == [1] * 24 + [probes]


async def test_a_measurement_goes_on_after_half_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, limits = tmp_path / "answers.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    async with Engine().running() as url:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as a full disk, which takes a part
        try:
            with pytest.raises(OSError, match="too large"):
                await measure(tmp_path, url, *SMALL)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        whole, _, torn = out.read_bytes().rpartition(b"\n")
        assert torn
        assert await measure(tmp_path, url, *SMALL) == 0
        assert out.read_bytes().startswith(whole + b"\n")
        assert len({row.question for row in kept(tmp_path)}) == len(kept(tmp_path)) == 24
        out.write_bytes(torn)  # no line of ours beside it: it may be anything
        assert await measure(tmp_path, url, *SMALL) == 2
        assert f"epp: {out}: holds no line of answers" in capsys.readouterr().err
        assert out.read_bytes() == torn


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"usage": None}, "TypeError"),
        ({"usage": {"prompt_tokens": 0}}, "ValueError: usage.prompt_tokens is 0"),
        ({"choices": []}, "IndexError"),
        ({"choices": [{"message": {}, "finish_reason": "stop"}]}, "KeyError: 'content'"),
    ],
)
async def test_an_answer_that_lacks_something_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    async with Engine(changes=changes).running() as url:
        assert await measure(tmp_path, f"mini={url}", *SMALL) == 1
    assert f"mini: {url}/v1/chat/completions: {words}" in capsys.readouterr().err


async def test_one_engine_that_is_gone_keeps_no_other_from_being_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Engine().running() as gone:
        pass
    async with Engine().running() as url:
        assert await measure(tmp_path, f"dead={gone}", url, *SMALL) == 1
        assert f"epp: dead: {gone}" in capsys.readouterr().err
        assert await measure(tmp_path, gone, url, *SMALL) == 2, "which models it has cannot be known"
        assert f"epp: {gone}/v1/models: ClientConnector" in capsys.readouterr().err
    assert {row.model for row in kept(tmp_path)} == {"phi"}


async def test_a_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    (tmp_path / "key").write_text("of the file\n")
    engine = Engine()
    async with engine.running() as url:
        await measure(tmp_path, url, *SMALL)
        assert engine.keys == {"Bearer of the environment"}
        await measure(tmp_path, url, *SMALL, "--seed", "1", "--bearer-token-file", tmp_path / "key")
        assert engine.keys == {"Bearer of the environment", "Bearer of the file"}


async def test_a_file_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answers.jsonl"
    out.write_text(json.dumps({"prompt": "hello"}) + "\n")
    async with Engine().running() as url:
        assert await measure(tmp_path, url, *SMALL) == 2
    assert f"epp: {out}, line 1: " in capsys.readouterr().err
    assert out.read_text() == '{"prompt": "hello"}\n'
