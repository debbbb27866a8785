"""`epp up`: what it takes in, what it leaves behind, what it writes."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import ssl
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from epp.cli import main
from epp.config.address import join_address
from epp.config.load import parse_config
from epp.config.schema import Scrape
from epp.envoy.child import Child
from epp.errors import EppError
from epp.ops.doctor.context import Page
from epp.ops.up.command import Kept, Line, claim_port, own_folder
from epp.ops.up.engines import Look, look, spec_of
from epp_lab.sim.http import SimReplica
from tests.kit.certificates import self_signed
from tests.kit.envoy import require_envoy
from tests.kit.ports import free_ports
from tests.kit.replicas import CHAT, chat_body, quick_config, running_fleet
from tests.kit.up import Up, running_up
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping


async def served(up: Up, *replicas: str) -> None:
    """Ask until each of these has answered; nobody is asked in vain."""
    seen = set[str]()

    async def all_seen() -> bool:
        """Several at once: each choice reserves its load, so the next one goes elsewhere."""
        told = await asyncio.gather(*(up.ask(text=os.urandom(4).hex()) for _ in range(2 * len(replicas))))
        assert {status for status, _ in told} == {200}
        seen.update(replica for _, replica in told)
        return seen >= set(replicas)

    await until(all_seen)


async def test_engines_answer_at_a_free_port_and_one_that_comes_up_later_is_taken_in(tmp_path: Path) -> None:
    late = f"127.0.0.1:{free_ports()}"
    with ExitStack() as taken:
        with suppress(OSError):  # somebody has it already
            taken.enter_context(socket.create_server(("127.0.0.1", 8080)))
        async with (
            running_fleet([quick_config("a"), quick_config("b")]) as (a, b),
            running_up(tmp_path, a.url, f"{b.url}/v1", late) as up,
        ):
            assert up.url.startswith("http://127.0.0.1:")
            assert not up.url.endswith(":8080")
            assert f"{a.address} is vLLM and serves sim-model" in up.log()
            assert f"{late} is not up, and is taken in once it is: Connection refused" in up.log()
            (page,) = re.findall(r"\S+/ui\b", up.log())
            async with aiohttp.ClientSession() as http, http.get(page) as answer:
                assert answer.status == 200
            assert f"epp top --url {page.removesuffix('/ui')}" in up.log()
            await served(up, "a", "b")
            async with SimReplica(quick_config("late", port=int(late.rpartition(":")[2]))):
                await served(up, "late")
            assert f"{late} is vLLM and serves sim-model" in up.log()


async def test_an_engine_is_asked_for_its_own_models_alone(tmp_path: Path) -> None:
    fleet = [quick_config(name, models=(f"model-{name}",)) for name in ("a", "b")]
    listen = f"127.0.0.1:{free_ports()}"
    async with running_fleet(fleet) as (a, b), running_up(tmp_path, a.url, b.url, "--listen", listen) as up:
        assert up.url == f"http://{listen}"
        assert [await up.ask(f"model-{name}") for name in "ababab"] == [(200, name) for name in "ababab"]
        body = chat_body("hello", max_tokens=4) | {"model": "model-b"}
        async with aiohttp.ClientSession() as http, http.post(up.url + CHAT, json=body) as answer:
            assert answer.headers["x-epp-endpoint"] == b.address


async def gone(pids: Iterable[int]) -> None:
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


async def test_neither_processes_nor_folders_are_left_of_two_that_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they of one that was killed before."""
    temporary, words = tmp_path / "temporary", ["up", f"127.0.0.1:{free_ports()}"]
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with running_up(tmp_path, *words[1:]) as up:
        pids = [up.pid, *up.children().values()]
        (left,) = temporary.glob("epp-up-*")
        os.kill(up.pid, signal.SIGKILL)
        assert await up.wait() == -signal.SIGKILL
        await gone(pids)
    assert left.exists()
    async with Up("a", words, tmp_path) as a, Up("b", words, tmp_path) as b:
        await asyncio.gather(a.ready(), b.ready())
        assert not left.exists()
        (page_a,), (page_b,) = (re.findall(r"\S+/ui\b", up.log()) for up in (a, b))
        assert a.url != b.url
        assert page_a != page_b
        pids = [pid for up in (a, b) for pid in (up.pid, *up.children().values())]
        assert len(pids) == 6
        for up, number in ((a, signal.SIGINT), (b, signal.SIGTERM)):
            os.kill(up.pid, number)
            assert await up.wait() == 0
            assert "Traceback" not in up.log()
        await gone(pids)
    assert list(temporary.glob("epp-up-*")) == []


async def test_what_dies_is_started_again_and_what_dies_twice_soon_ends_all(tmp_path: Path) -> None:
    async with running_fleet([quick_config("a")]) as (a,), running_up(tmp_path, a.url) as up:
        (page,) = re.findall(r"\S+/ui\b", up.log())

        async def answers() -> bool:
            with suppress(aiohttp.ClientError):
                async with aiohttp.ClientSession() as http, http.get(page) as answer:
                    return answer.status == 200 and await up.ask() == (200, "a")
            return False

        for process in ("picker", "envoy"):
            before = up.children()
            os.kill(before[process], signal.SIGKILL)
            said = f"{process} ended early: killed by SIGKILL\n"
            await up.until(lambda: "It is started again" in up.log().partition(said)[2])  # noqa: B023  # waited for
            await until(answers)
            assert len(before.items() & up.children().items()) == 1, "the other goes on"
        last = up.children()
        os.kill(last["envoy"], signal.SIGKILL)
        assert await up.wait() == 2
        assert "epp: envoy ended early: killed by SIGKILL" in up.log()
        await gone(last.values())


async def test_a_process_may_end_again_after_ten_seconds(tmp_path: Path) -> None:
    said = list[str]()
    async with Child("once", ["-c", "raise SystemExit(3)"], tmp_path, (sys.executable,)) as child:
        kept = Kept(child, said.append)
        for now_s in (100.0, 110.0):
            await child.wait()
            await kept.check(now_s)
        await child.wait()
        with pytest.raises(EppError, match="once ended early: status 3"):
            await kept.check(119.9)
    assert len(said) == 2


def test_folders_of_runs_that_were_killed_are_removed_and_those_of_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, foreign = tmp_path / "epp-up-left", tmp_path / "epp-up-foreign"
    for folder in (left, foreign):
        folder.mkdir()
    (left / "lock").touch()
    with ExitStack() as one, ExitStack() as other:
        first = own_folder(one)
        assert not left.exists()
        second = own_folder(other)
        assert first != second
        assert {first, second, foreign} == set(tmp_path.iterdir())
        one.close()
        assert {second, foreign} == set(tmp_path.iterdir())


async def test_a_signal_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    require_envoy()
    async with Up("up", ["up", f"127.0.0.1:{free_ports()}"], tmp_path) as up:
        await up.until(up.children)
        (pid,) = up.children().values()
        os.kill(up.pid, signal.SIGTERM)
        assert await up.wait() == 0
        # At the latest the kernel ends it, a moment after its parent.
        await gone([pid])


async def test_the_files_that_it_writes_serve_alike_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_envoy()
    folder, records = tmp_path / "some files", tmp_path / "records"
    monkeypatch.setenv("KEY", "secret")
    monkeypatch.chdir(tmp_path)
    async with running_fleet([quick_config("a"), quick_config("b")]) as (a, b):
        words = ["--key-env", "KEY", "--write", folder.name, "--record", records.name]
        async with Child("write", ["up", a.url, b.url, *words], tmp_path) as writing:
            assert await writing.wait() == 0
        serve, run, render = (
            shlex.split(line) for line in writing.log().splitlines() if line.startswith("  ")
        )
        monkeypatch.chdir("/")
        before = (folder / "envoy.yaml").read_text()
        assert main(render[1:]) == 0
        assert (folder / "envoy.yaml").read_text() == before
        assert parse_config((folder / "epp.yaml").read_bytes(), "epp.yaml").queue.enabled
        assert (folder / "key").stat().st_mode & 0o777 == 0o600
        ready = tmp_path / "ready.json"
        async with Child("serve", [*serve[1:], "--ready-file", str(ready)], tmp_path) as picker:
            await picker.until(ready.exists)
            async with Child("envoy", [*run[1:], "--concurrency", "1"], tmp_path, (run[0],)):
                client = Up("client", [], tmp_path)
                client.url = f"http://{render[render.index('--listen') + 1]}"

                async def answers() -> bool:
                    with suppress(aiohttp.ClientError):
                        return (await client.ask())[0] == 200
                    return False

                await until(answers)
                await served(client, "a", "b")
        assert list(records.iterdir())
    assert main(["up", "http://127.0.0.1:1", "--write", str(folder)]) == 2
    assert "has an epp.yaml" in capsys.readouterr().err


@asynccontextmanager
async def fronted(
    replica: SimReplica, host: str, tls: ssl.SSLContext | None = None, path: str = ""
) -> AsyncIterator[str]:
    """Put a server before a replica, which has it below a path; its host and port."""

    async def ask(request: web.Request) -> web.Response:
        if path and request.host != address:
            return web.Response(status=421)
        url, body = replica.url + request.path_qs.removeprefix(path), await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() == "content-type"}
        async with (
            aiohttp.ClientSession() as http,
            http.request(request.method, url, data=body, headers=headers) as answer,
        ):
            kept = {
                name: answer.headers[name]
                for name in ("content-type", "x-served-by")
                if name in answer.headers
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    app = web.Application()
    app.router.add_route("*", path + "/{rest:.*}", ask)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, 0, ssl_context=tls).start()
    address = join_address(host, runner.addresses[0][1])
    try:
        yield address
    finally:
        await runner.cleanup()


def own_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate of loopback that nobody else has signed."""
    cert, key = self_signed(
        folder / "tls.crt", folder / "tls.key", "engine", alternatives="IP:127.0.0.1,IP:::1,DNS:localhost"
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context, cert


@pytest.mark.parametrize("trust", ["--ca-file", "--insecure"])
async def test_engines_serve_over_tls_and_ipv6(tmp_path: Path, trust: str) -> None:
    tls, cert = own_certificate(tmp_path)
    words = [trust, str(cert)] if trust == "--ca-file" else [trust]
    for flag in ("listen", "http", "grpc"):
        words += [f"--{flag}", f"[::1]:{free_ports()}"]
    async with (
        running_fleet([quick_config("a"), quick_config("b"), quick_config("c")]) as (a, b, c),
        fronted(a, "127.0.0.1", tls) as first,
        fronted(b, "::1", tls) as second,
        fronted(c, "::1") as third,
        running_up(tmp_path, f"https://{first}", f"https://{second}/v1", f"http://{third}", *words) as up,
    ):
        assert up.url == f"http://{words[words.index('--listen') + 1]}"
        await served(up, "a", "b", "c")
        assert f"Fleet and decisions: http://{words[words.index('--http') + 1]}/ui" in up.log()


async def test_engines_behind_paths_are_asked_there_and_so_is_a_retry(tmp_path: Path) -> None:
    async with (
        running_fleet([quick_config("a"), quick_config("b"), quick_config("c")]) as (a, b, c),
        AsyncExitStack() as stack,
        fronted(b, "127.0.0.1", path="/other/place") as second,
    ):
        first = await stack.enter_async_context(fronted(a, "127.0.0.1", path="/llm"))
        engines = f"http://{first}/llm/v1", f"http://{second}/other/place/", c.url
        async with running_up(tmp_path, *engines) as up:
            assert f"{first} is vLLM and serves sim-model" in up.log()
            await served(up, "a", "b", "c")
            (page,) = re.findall(r"(\S+)/ui\b", up.log())

            async def scraped() -> bool:
                async with aiohttp.ClientSession() as http, http.get(f"{page}/metrics") as answer:
                    return (
                        len(Page(await answer.text()).by("epp_endpoint_engine_age_seconds", "endpoint")) == 3
                    )

            await until(scraped)
            await stack.aclose()
            for number in range(6):
                status, replica = await up.ask(text=f"another question {number}")
                assert (status, replica in ("b", "c")) == (200, True)


async def test_a_certificate_that_does_not_pass_is_named_as_the_cause(tmp_path: Path) -> None:
    tls, cert = own_certificate(tmp_path)
    async with (
        running_fleet([quick_config("a")]) as (a,),
        fronted(a, "127.0.0.1", tls) as address,
        aiohttp.ClientSession() as http,
    ):
        spec = spec_of(f"https://{address}")
        seen = await look(http, spec, Scrape())
        assert seen.spec is None
        assert seen.words.startswith(
            "shows a certificate that does not pass, self-signed certificate: --ca-file"
        )
        for scrape in (Scrape(ca_file=str(cert)), Scrape(insecure=True)):
            assert (await look(http, spec, scrape)).words == "is vLLM and serves sim-model"


async def looked_at(owner: str, metrics: str, folder: Path, key: str = "") -> Look:
    """Look at an engine whose key is ``right``, with a key."""

    async def models(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer right":
            return web.Response(status=401)
        listed = [{"id": "base", "owned_by": owner}, {"id": "lora", "owned_by": owner, "parent": "base"}]
        return web.json_response({"data": listed})

    async def shown(request: web.Request) -> web.Response:
        if metrics.startswith("trtllm") and request.path == "/metrics":
            return web.json_response([])
        return web.Response(text=metrics, status=401 if metrics == "refused" else 200 if metrics else 501)

    app = web.Application()
    paths = ("/metrics", "/prometheus/metrics")
    app.add_routes([web.get("/v1/models", models), *(web.get(path, shown) for path in paths)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    file = folder / "key"
    file.write_text(key)
    try:
        async with aiohttp.ClientSession() as http:
            spec = spec_of(f"http://127.0.0.1:{runner.addresses[0][1]}")
            return await look(http, spec, Scrape(bearer_token_file=str(file) if key else ""))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("owner", "metrics", "words"),
    [
        ("vllm", "vllm:num_requests_running 1\n", "is vLLM and serves base, lora"),
        ("sglang", "", "is SGLang and serves base, lora; its queue stays unknown without --enable-metrics"),
        ("llamacpp", "", "is llama.cpp and serves base, lora; its queue stays unknown without --metrics"),
        ("tensorrt_llm", "trtllm_num_requests_running 1\n", "is TensorRT-LLM and serves base, lora"),
        ("hub/base", "tgi_queue_size 0\n", "is TGI and serves base, lora"),
        ("lmdeploy", "lmdeploy:num_requests_running 0\n", "is LMDeploy and serves base, lora"),
        ("me", "ray_vllm_num_requests_running 0\n", "is vLLM and serves base, lora"),
        ("nvidia", "dynamo_frontend_inflight_requests 0\n", "is Dynamo and serves base, lora"),
        ("vllm", "refused", "is vLLM and serves base, lora; its metrics want another key: --key-env NAME"),
        ("me", "", "is an OpenAI server and serves base, lora; its queue stays unknown"),
    ],
)
async def test_engines_are_recognised_with_their_key(
    tmp_path: Path, owner: str, metrics: str, words: str
) -> None:
    seen = await looked_at(owner, metrics, tmp_path, "right")
    assert seen.words == words
    assert seen.spec is not None
    assert (seen.spec.models, seen.spec.adapters) == (["base"], ["lora"])


@pytest.mark.parametrize(("key", "words"), [("", "wants a key: --key-env"), ("wrong", "wants another key")])
async def test_an_engine_that_wants_a_key_says_so(tmp_path: Path, key: str, words: str) -> None:
    seen = await looked_at("vllm", "", tmp_path, key)
    assert seen.spec is None
    assert seen.words.startswith(words)


@pytest.mark.parametrize(
    ("url", "address", "base_path", "tls"),
    [
        ("http://127.0.0.1:8000/v1/", "127.0.0.1:8000", "", False),
        ("engine.example:8000", "engine.example:8000", "", False),
        ("https://[::1]", "[::1]:443", "", True),
        ("http://engine.example/llm/v1", "engine.example:80", "/llm", False),
        ("http://engine.example/a/b/", "engine.example:80", "/a/b", False),
    ],
)
def test_urls_are_read_as_people_write_them(url: str, address: str, base_path: str, tls: bool) -> None:
    spec = spec_of(url)
    assert (spec.address, spec.base_path, spec.tls) == (address, base_path, tls)


def test_what_cannot_be_used_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    require_envoy()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ExitStack() as claims:
            assert claim_port(claims, "127.0.0.1", port, others=True) > port
        cases: Mapping[str, tuple[str, ...]] = {
            f"cannot listen on 127.0.0.1:{port}": ("http://a", "--listen", f"127.0.0.1:{port}"),
            "'ftp://a' is not an engine's address": ("ftp://a",),
            f"listen on 127.0.0.1:{port}:": ("http://a", "--grpc", f"127.0.0.1:{port}"),
            "a:80 is given twice": ("http://a/one", "http://a/two"),
            "the variable NO_KEY is not set": ("http://a", "--key-env", "NO_KEY"),
        }
        for problem, words in cases.items():
            assert main(["up", *words]) == 2
            (told,) = capsys.readouterr().err.splitlines()
            assert problem in told


def test_the_live_line_counts_requests_by_engine_and_says_what_it_waits_for() -> None:
    text = (
        "# TYPE epp_outcomes counter\n"
        'epp_outcomes_total{endpoint="a:1",cause="completed",status="2xx"} 5\n'
        'epp_outcomes_total{endpoint="b:1",cause="completed",status="2xx"} 3\n'
        "# TYPE epp_requests_in_flight gauge\nepp_requests_in_flight 2\n"
    )
    line: Any = Line()
    line.of(Page(""), 10.0, ["a:1", "b:1"])
    told = "8 requests  2 in flight  4.0/s  a:1: 5  b:1: 3  waiting for c:1"
    assert line.of(Page(text), 12.0, ["c:1"]).plain == told
