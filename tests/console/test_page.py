"""The live page, in a real browser and as events, of real pickers behind a real Envoy."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from epp.config.listen import FileTls, Listen
from epp.config.plan import Plan, Split, render_plan
from epp.console import frames
from epp.console.frames import frame
from epp.console.history import History
from epp.envoy.child import EPP
from epp.server.live import Live
from epp.server.process import SystemClock
from tests.kit.apps import app_of, ask, rewrite
from tests.kit.browser import chromium
from tests.kit.clock import ManualClock
from tests.kit.events import opinion, pictures
from tests.kit.picker import PickerProcess, Serving
from tests.schedule.test_program_gate import FIRST, Talk

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "the words of a prompt that nobody shall see"
ROWS = "document.querySelectorAll('#rows tr').length"
DIALOG = "document.getElementById('explain')"


@pytest.mark.envoy
async def test_decisions_show_and_are_explained_by_keyboard(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving, chromium(tmp_path) as page:
        await page.open(f"http://{serving.picker.http}/ui")
        await page.until("document.getElementById('state')?.textContent === 'live'")
        await page.until("document.querySelectorAll('.replica .status').length === 3")
        await serving.chat()
        await page.until(f"{ROWS} === 1")

        await page.until("document.querySelector('#totals tr') !== null")
        await page.press("g")
        assert await page.look("document.querySelector('#totals td').textContent") == "sim-model"
        await page.press("j")
        await page.press("Enter")
        await page.until(f"{DIALOG}.open")
        explained = await page.look(f"{DIALOG}.innerText")
        assert all(spec.address in explained for spec in serving.specs())
        assert "prefill" in explained
        assert " was chosen " in explained
        assert await page.look(f"{DIALOG}.scrollTop") == 0, "its first words are why"
        await page.press("Escape")
        await page.until(f"!{DIALOG}.open")

        light = await page.look("getComputedStyle(document.body).backgroundColor")
        await page.dark(on=True)
        assert await page.look("getComputedStyle(document.body).backgroundColor") != light
        loaded = await page.look(
            "performance.getEntriesByType('resource').map((each) => new URL(each.name).host)"
        )
        assert set(loaded) == {serving.picker.http}, "the page needs nothing of elsewhere"

        nodes = []
        for _ in range(3):
            await asyncio.gather(*(serving.chat(f"{number}") for number in range(50)))
            last = await last_decision(serving)
            await page.until(f"document.querySelector('#rows tr').dataset.id === {json.dumps(last)}")
            # But for endpoints whose probes were late.
            nodes.append(await page.look("document.querySelectorAll('*:not(#outs *)').length"))
        assert await page.look(ROWS) == 31, "the newest, and the one in focus"
        assert nodes[1] == nodes[2]


async def last_decision(serving: Serving) -> str:
    async with serving.http.get(f"http://{serving.picker.http}/decisions/last") as answer:
        return str((await answer.json())["id"])


@pytest.mark.envoy
async def test_events_carry_numbers_and_another_policys_opinion(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        for number in range(12):
            await serving.chat(f"{SECRET} {number % 4}", headers={"x-session-id": SECRET})
        async with pictures(serving.picker.http) as heard:
            picture = await anext(heard)
            (shown,) = picture["pickers"]
            assert "lmetric" in picture["policies"]
            assert len(picture["decisions"]) == 12
            assert [row["id"] for row in shown["fleet"]] == [spec.address for spec in serving.specs()]
            assert shown["unit"] == "ms, weighted"
            assert SECRET not in json.dumps(picture)
            own = await opinion(serving.picker.http, "gorgo-ms")
            assert "the same on 100% of 12 decisions; +0.0" in own, "it is the one that decided"
            other = await opinion(serving.picker.http, "lmetric")
            assert "lmetric would have chosen the same on" in other
            assert "of 12 decisions" in other
            assert "could not be asked" not in other
            async with serving.http.get(
                f"http://{serving.picker.http}/ui/opinion", params={"policy": "none"}
            ) as answer:
                assert answer.status == 404

            await serving.picker.stop()
            assert [one async for one in heard if not one["pickers"]] == [], "an open page holds up no end"


@pytest.mark.envoy
async def test_one_page_shows_all_workers(tmp_path: Path) -> None:
    async with Serving(tmp_path, options=("--workers", "3"), concurrency=3) as serving:
        asked, requests_s = 40, 0.0
        async with pictures(serving.picker.http) as heard:
            await asyncio.gather(*(serving.chat(f"{number}") for number in range(asked)))
            picture = await anext(heard)
            while len(picture["pickers"]) < 3 or not requests_s:
                picture = await anext(heard)
                totals = {row[0]: row[1] for row in picture["past"]["groups"]["region"]}
                requests_s = totals["all"][0] if totals else 0.0
            assert f"of {asked} decisions" in await opinion(serving.picker.http, "lmetric")


@pytest.mark.parametrize(
    ("listen", "served"),
    [
        (Listen(), True),
        (Listen(http="[::1]:9090"), True),
        (Listen(http="0.0.0.0:9090"), False),
        (Listen(http="0.0.0.0:9090", ui=True), True),
        (Listen(http="0.0.0.0:9090", http_tls=FileTls(cert_file="c", key_file="k")), False),
        (
            Listen(http="0.0.0.0:9090", http_tls=FileTls(cert_file="c", key_file="k", client_ca_file="ca")),
            True,
        ),
        (Listen(ui=False), False),
    ],
)
def test_beyond_loopback_the_page_is_served_to_known_clients_or_on_request(
    listen: Listen, served: bool
) -> None:
    assert listen.serves_ui is served


async def test_a_picker_that_shall_not_serve_the_page_does_not(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    picker = PickerProcess(
        tmp_path, listen={**dict.fromkeys(("grpc", "http"), "127.0.0.1:0"), "ui": False, "first_token": ""}
    )
    await picker.start()
    try:
        async with aiohttp.ClientSession() as http, http.get(f"http://{picker.http}/ui") as answer:
            assert answer.status == 404
    finally:
        await picker.stop()


def test_a_start_loads_nothing_of_the_page() -> None:
    loaded = "import epp.server.command, sys; print([name for name in sys.modules if 'console' in name])"
    done = subprocess.run((sys.executable, "-c", loaded), capture_output=True, text=True, check=True)
    assert "epp." not in done.stdout


async def test_weights_show_their_bounds_history_and_trial(tmp_path: Path) -> None:
    app = app_of(
        tmp_path, pool={"file": "endpoints.yaml"}, weights_file="weights.yaml", policy={"name": "gorgo-ms"}
    )
    rewrite(app, tmp_path / "endpoints.yaml", "endpoints: [{address: '192.0.2.1:8000'}]")
    ask(app)
    app.scheduler.weights.note(0.0)
    for weight in (1.5, 2.5):
        trial = Split(id="t", weights={"stall_weight": 0.5}, valid_from_wall_s=0.0, valid_until_wall_s=1e11)
        plan = Plan(weights={"prefill_weight": weight}, policy="gorgo-ms", reason="better", trial=trial)
        rewrite(app, tmp_path / "weights.yaml", render_plan(plan))
        app.scheduler.weights.note(weight)
    history = History(app.scheduler.datastore, SystemClock())
    shown = frame(Live(app.scheduler, app.director.recent, SystemClock(), None, None, history, {}))
    weights = {row["id"]: row for row in shown["weights"]}
    assert weights["prefill_weight"]["bounds"] == "1..12"
    assert weights["prefill_weight"]["about"] == "from tuner"
    ages_s, values = zip(*weights["prefill_weight"]["history"], strict=True)
    assert values == (3.0, 1.5, 2.5, 2.5), "the last is now"
    assert [ages_s[0] - age_s for age_s in ages_s[:3]] == pytest.approx([0.0, 1.5, 2.5])
    assert weights["stall_weight"]["tried"] == "→ 0.5"
    (tuner,) = shown["words"]
    assert tuner.startswith("tuner: trial t: split, 5% of sessions, candidate serves, ")
    assert tuner.endswith("; better")


async def test_an_endpoint_that_gets_no_requests_shows_why_and_since_when(tmp_path: Path) -> None:
    clock = ManualClock(mono_s=100.0, wall_s=3600.0)
    app = app_of(tmp_path, clock, pool={"file": "endpoints.yaml"}, probe={"interval_s": 2})
    pool = ", ".join(
        f"{{address: '192.0.2.{number}:8000', draining: {number == 3}}}" for number in range(1, 6)
    )
    rewrite(app, tmp_path / "endpoints.yaml", f"endpoints: [{pool}]")
    datastore = app.scheduler.datastore
    for address in ("192.0.2.1:8000", "192.0.2.2:8000", "192.0.2.3:8000", "192.0.2.5:8000"):
        slot = datastore.slot_of(address)
        assert slot is not None
        datastore.health.success(slot, 100.0)
    for now_s in (100.0, 101.0, 102.0):
        datastore.health.failure(0, "probe", now_s, "probes fail, the last: no answer")
    datastore.retry_after.pause(1, 30.0, "d-1", 102.0, "it answered 429 and asked for 30 s")
    clock.advance(3.0)
    live = Live(app.scheduler, app.director.recent, clock, None, None, History(datastore, clock), {})
    shown = {row["id"].removesuffix(":8000"): (row["state"], row["why"]) for row in frame(live)["fleet"]}
    assert shown == {
        "192.0.2.1": ("ejected", "since 01:00:02 UTC: probes fail, the last: no answer"),
        "192.0.2.2": ("paused", "since 01:00:02 UTC: it answered 429 and asked for 30 s"),
        "192.0.2.3": ("draining", "the pool says so"),
        "192.0.2.4": ("unproven", "it has not answered a probe lately"),
        "192.0.2.5": ("healthy", ""),
    }


async def test_agents_show_by_engine_what_of_its_cache_they_need_and_how_long_the_next_turn_may_wait(
    tmp_path: Path,
) -> None:
    app, clock, talk = app_of(tmp_path), ManualClock(), Talk(FIRST)
    talk.ask("a", 60_000, "a")
    talk.end("a")
    talk.ask("b", 60_000, "b")
    clock.advance(130.0)
    history = History(talk.scheduler.datastore, clock)
    live = Live(talk.scheduler, app.director.recent, clock, None, None, history, {})
    live.waiting, live.programs = talk.binding.waiting, talk.programs
    shown = frame(live)
    assert [row["agents"] for row in shown["fleet"]] == ["1 agents, 60%, 0 wait"]
    assert shown["queue"] == [(0, "default-flow", "a place of its context in a KV cache", 1, 130.0)]
    assert "agents: 1 turns are held, the first for 410 s more at most; " in shown["words"][-1]


@pytest.mark.envoy
async def test_top_shows_the_same_in_a_terminal(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        await serving.chat()
        url = f"http://{serving.picker.http}"
        words = (*EPP, "top", "--url", url, "--ask", "lmetric")
        printing = await asyncio.create_subprocess_exec(
            *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={"COLUMNS": "200"}
        )
        printed = (await printing.communicate())[0].decode()
        assert all(spec.address in printed for spec in serving.specs())
        assert "lmetric would have chosen the same on" in printed
        assert "prefill_weight" in printed

        leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        running = await asyncio.create_subprocess_exec(
            *words, stdin=follower, stdout=follower, env={"TERM": "xterm"}
        )
        try:
            await until_printed(leader, "costs in ms, weighted")
            await serving.chat()
            await until_printed(leader, await last_decision(serving))
            os.write(leader, b"gsw")
            await until_printed(leader, "last hour, by err/s")
            os.write(leader, b"q")
            await until_printed(leader, "\x1b[?1049l")  # the screen of before
            assert await running.wait() == 0
        finally:
            os.close(leader)
            os.close(follower)
        await serving.picker.stop()
        gone = await asyncio.create_subprocess_exec(*words, stderr=subprocess.PIPE)
        assert url in (await gone.communicate())[1].decode()
        assert gone.returncode == 2


async def until_printed(terminal: int, words: str) -> None:
    """Read a terminal until it shows something."""
    shown = ""
    async with asyncio.timeout(240):
        while words not in shown:
            ready, _, _ = select.select([terminal], [], [], 0)
            if ready:
                shown += os.read(terminal, 65536).decode(errors="replace")
            else:
                await asyncio.sleep(0.05)


async def test_one_opinion_is_made_at_a_time_and_all_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, most = 0, 0
    make = frames._ask

    def slowly(*words: object) -> dict[str, Any]:
        nonlocal making, most
        making, most = making + 1, max(most, making + 1)
        time.sleep(0.1)
        making -= 1
        return make(*words)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(frames, "_ask", slowly)
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    any_port = dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0")
    app = app_of(tmp_path, listen=any_port)
    await app.start()
    try:
        names = ("gorgo", "gorgo-ms", "lmetric", "round-robin", "least-request")
        said = await asyncio.gather(*(opinion(app.addresses["http"], name) for name in names))
    finally:
        await app.stop(0.0)
    assert len(said) == len(names)
    assert most == 1
