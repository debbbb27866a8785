"""`epp explain` as it is used beside a running `epp up`: it finds it, tells outcomes, and previews."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from epp.errors import EppError
from epp.ops.picker_http import UP_READY, newest_up
from epp.ops.up.command import own_folder
from tests.kit.records import command, decided, record_all
from tests.kit.replicas import MODEL, chat_body, quick_config, running_fleet
from tests.kit.up import own_ports, running_up
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder and a working folder in which no other run leaves anything."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("apart")
def test_the_newest_run_that_still_runs_is_found() -> None:
    with ExitStack() as first, ExitStack() as second:
        for claims, port in ((first, 1), (second, 2)):
            folder = own_folder(claims)
            (folder / UP_READY).write_text(json.dumps({"http": f"127.0.0.1:{port}"}))
        assert newest_up() == "http://127.0.0.1:2"
        second.close()
        assert newest_up() == "http://127.0.0.1:1"


@pytest.mark.usefixtures("apart")
def test_without_anything_to_ask_it_says_what_to_name() -> None:
    with pytest.raises(EppError, match=r"no `epp up` runs here: name a picker by --url, or records by"):
        command("explain")


def test_the_last_on_record_is_a_generation(apart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first, ask), (last, _) = decided(2)
    listing = last.__class__(
        **{
            **{name: getattr(last, name) for name in last.__struct_fields__},
            "request": type(last.request)(decision_id="list"),
        }
    )
    record_all(apart / "records", [(first, ask), (listing, ask)])
    assert command("explain", "--records", apart / "records", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == first.id


async def test_beside_a_running_up_it_tells_outcomes_and_what_would_be_picked(
    apart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (apart / "body.json").write_text(json.dumps({**chat_body("hello", max_tokens=4), "model": MODEL}))
    async with (
        running_fleet([quick_config("a"), quick_config("b")]) as (a, b),
        running_up(apart, a.url, b.url, *own_ports()) as up,
    ):
        status, _ = await up.ask()
        assert status == 200

        async def explained(*words: str) -> str:
            assert await asyncio.to_thread(main, ["explain", *words]) == 0
            return capsys.readouterr().out

        async def has_ended() -> bool:
            return "completed with status 200: TTFT" in await explained()

        await until(has_ended)
        assert " was chosen " in await explained()
        told = json.loads(await explained("--json"))
        assert told["outcome"]["completion_tokens"] == 4
        would = await explained("--request", "body.json")
        assert " would be chosen " in would
        assert "no outcome" not in would
        assert json.loads(await explained("--json"))["id"] == told["id"], "it was not a request"
