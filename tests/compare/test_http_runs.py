"""`epp replay --over-http`: live gateways, driven one after the other, with the same statistics."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from epp.errors import EppError
from epp.lab.compare import command
from epp.lab.compare.http_runs import gateways_of
from tests.kit.replicas import MODEL, quick_config, running_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replicas(count: int) -> Iterator[list[str]]:
    """Simulated replicas in a thread of their own, since the command owns its event loop."""
    ready = threading.Event()
    urls: list[str] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with running_fleet([quick_config(f"r{i}") for i in range(count)]) as fleet:
            urls.extend(replica.url for replica in fleet)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_two_gateways_are_compared_within_the_load(tmp_path: Path) -> None:
    with replicas(2) as urls:
        words = ("--workload", "demo", "--seconds", "3", "--load", "2", "--warmup", "0", "--model", MODEL)
        live = [word for i, url in enumerate(urls) for word in ("--over-http", f"g{i}={url}")]
        assert run(*words, *live, "--open-loop", "--out", str(tmp_path)) == 0
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_bytes())
    assert (found["candidate"], found["fleet"]) == ("g0", [])
    (cell,) = found["cells"]
    assert [p["name"] for p in cell["policies"]] == ["g0", "g1"]
    assert all(p["errors"] == 0 and p["per_seed"][0]["requests"] >= 20 for p in cell["policies"])
    assert cell["comparisons"][0]["unit"] == "request"
    assert cell["policies"][0]["believed_hit_share"] is None
    assert "one after the other" in (tmp_path / "report.html").read_text(encoding="utf-8")


SHORT = ("--workload", "demo", "--seconds", "1", "--load", "5", "--warmup", "0", "--open-loop")


def test_a_gateway_that_is_not_there_is_told_before_another_is_driven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with replicas(1) as (url,):
        words = (*SHORT, "--over-http", f"here={url}", "--over-http", "gone=http://127.0.0.1:9")
        with pytest.raises(EppError, match="gone does not answer, and nothing was sent to any: Client"):
            run(*words, "--model", MODEL, "--out", str(tmp_path))
    assert capsys.readouterr().out == ""


def test_a_gateway_that_answers_nothing_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is there, and refuses every request by the path."""
    with replicas(1) as (url,):
        gateways = (f"off={url}/off", f"here={url}")
        words = [word for gateway in gateways for word in ("--over-http", gateway)]
        words = [*SHORT, *words, "--model", MODEL, "--out", str(tmp_path), "--workload", "demo,demo"]
        assert run(*words) == 1
    assert "demo: off answered no request: HTTP 404" in capsys.readouterr().err
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_bytes())
    assert found["candidate"] == "here"
    assert [[p["name"] for p in cell["policies"]] for cell in found["cells"]] == [["here"]] * 2


def test_where_no_gateway_answers_there_are_no_results(tmp_path: Path) -> None:
    with replicas(1) as (url,), pytest.raises(EppError, match="off answered no request: HTTP 404"):
        run(*SHORT, "--over-http", f"off={url}/off", "--model", MODEL, "--out", str(tmp_path))


def test_gateways_have_names() -> None:
    def named(*texts: str) -> dict[str, str]:
        return gateways_of(argparse.Namespace(over_http=list(texts)))

    assert named("a=http://x:1", "https://y:2/") == {"a": "http://x:1", "y:2": "https://y:2/"}
    assert named("http://x:1/?q=1") == {"x:1/?q=1": "http://x:1/?q=1"}
    with pytest.raises(EppError, match="twice"):
        named("a=http://x", "a=http://y")
