"""What can be turned off, and what happens when the picker's listeners are not there. A real Envoy each."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
import yaml

from epp.cli import main
from epp.envoy import clusters, filters, observe
from epp.envoy.examples import ENDPOINTS
from epp.envoy.render import render
from epp.envoy.settings import EnvoySettings, Variant
from epp.extproc import messages
from epp.request import access_log
from epp.request.access_log import Termination
from tests.observe import answers
from tests.observe.conftest import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.envoy


def test_both_sides_use_the_same_names() -> None:
    assert observe.OBSERVED_NAMESPACE == access_log.OBSERVED_NAMESPACE
    assert filters.DECISION_NAMESPACE == messages.DECISION_NAMESPACE
    assert clusters.DESTINATION_KEY == messages.DESTINATION_HEADER


@pytest.mark.parametrize(
    "changes", [{"observe": False}, {"variant": Variant.FULL_DUPLEX}], ids=["off", "full-duplex"]
)
def test_nothing_watches_where_nothing_is_to_be_watched(changes: dict[str, object]) -> None:
    tree = yaml.safe_load(render(EnvoySettings(endpoints=ENDPOINTS, **changes)))  # type: ignore[arg-type]  # a table
    text = str(tree)
    assert "'stat_prefix': 'observe'" not in text
    assert "http_grpc" not in text
    assert [c["name"] for c in tree["static_resources"]["clusters"]] == ["replicas", "picker"]


@pytest.mark.parametrize(
    ("on", "path", "seen"),
    [
        (True, "/v1/chat/completions?x=1", False),
        (True, "/tenant/v1/messages/", False),
        (True, "/v1/files", True),
        (False, "/v1/chat/completions", True),
    ],
)
async def test_accept_encoding(on: bool, path: str, seen: bool) -> None:
    async with running(strip_accept_encoding=on) as rig:
        rig.plays(answers.whole(b"{}"))
        _, _, told = await rig.exchange("accept-encoding: gzip\r\n", path)
        assert ("accept-encoding: gzip" in rig.upstream.heads[-1].lower()) is seen
        assert told.cause is Termination.COMPLETED


@contextlib.asynccontextmanager
async def hung_listener() -> AsyncIterator[int]:
    """Accepts connections and never says a word."""
    writers = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await asyncio.sleep(3600)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def test_hung_or_dead_first_token_listener_disturbs_nobody() -> None:
    async with hung_listener() as hung:
        for port in (hung, 1):
            async with running(first_token_port=port) as rig:
                rig.plays(answers.stream(answers.token("a"), answers.usage(), answers.DONE))
                for _ in range(5):
                    client, body, told = await rig.exchange()
                    assert (client.status, told.cause) == (200, Termination.COMPLETED)
                    assert answers.DONE in body
                    assert told.usage.completion_tokens == 5
                assert set((await rig.envoy.stats(r"lua\.observe\.errors")).values()) == {0}


async def test_picker_that_dies_mid_answer_and_returns() -> None:
    async with running() as rig:
        go_on = asyncio.Event()

        async def play(writer: asyncio.StreamWriter) -> None:
            writer.write(answers.head())
            await go_on.wait()
            writer.write(
                answers.chunk(answers.token("a") + answers.usage() + answers.DONE) + answers.chunk(b"")
            )

        rig.plays(play)
        async with rig.client() as client:
            await client.read_head()
            await rig.picker.stop()
            go_on.set()
            body = await client.body()
            assert client.status == 200
            assert answers.DONE in body
        # Without it requests go on, undecided; back again, reports come again.
        async with rig.client() as client:
            await client.read_head()
            assert (client.status, client.header("x-epp-decision-id")) == (200, "")
            await client.body()
        await rig.picker.start()
        async with asyncio.timeout(240):
            decided = len(rig.picker.ids)
            while len(rig.picker.ids) == decided:
                async with rig.client() as client:
                    await client.read_head()
                    await client.body()
        assert (await rig.told.report(rig.picker.ids[-1])).usage.completion_tokens == 5


@pytest.fixture
def rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, list[str]]]:
    def render_command(config: str, flags: list[str]) -> tuple[str, list[str]]:
        """What the command prints, and where first tokens are told."""
        (tmp_path / "epp.yaml").write_text(config)
        (tmp_path / "endpoints.yaml").write_text("endpoints:\n- address: 10.0.0.1:8000\n")
        assert main(["envoy", "render", "--config", str(tmp_path / "epp.yaml"), *flags]) == 0
        text = capsys.readouterr().out
        addresses = [
            each["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"][
                "socket_address"
            ]
            for each in yaml.safe_load(text)["static_resources"]["clusters"]
            if each["name"] == "first-tokens"
        ]
        return text, [f"{one['address']}:{one['port_value']}" for one in addresses]

    return render_command


@pytest.mark.parametrize(
    ("flags", "cluster", "watched"),
    [
        ([], ["127.0.0.1:9003"], True),
        (["--first-token", "10.0.0.9:7000"], ["10.0.0.9:7000"], True),
        (["--first-token", "0"], [], True),
        (["--no-observe"], [], False),
    ],
)
def test_command_says_what_is_watched(
    rendered: Callable[..., tuple[str, list[str]]], flags: list[str], cluster: list[str], watched: bool
) -> None:
    text, told = rendered("{}\n", flags)
    assert told == cluster
    assert ("stat_prefix: observe" in text) is watched
    assert "envoy_on_request" not in text


@pytest.mark.parametrize(
    ("listen", "flags", "address"),
    [
        ('grpc: "[::]:9002"', [], "127.0.0.1"),  # first_token's default: loopback, IPv4
        ("grpc: 127.0.0.1:9002, first_token: 10.0.0.5:9003", [], "10.0.0.5"),
        ('grpc: "[::]:9002", first_token: "[::]:9003"', [], "::1"),
        ("grpc: 0.0.0.0:9002, first_token: 0.0.0.0:9003", ["--picker", "10.0.0.7:9002"], "10.0.0.7"),
        ("grpc: 10.0.0.5:9002, first_token: 10.0.0.5:9003", ["--picker", "epp.example:9002"], "epp.example"),
    ],
)
def test_first_tokens_are_told_where_the_picker_listens_for_them(
    rendered: Callable[..., tuple[str, list[str]]], listen: str, flags: list[str], address: str
) -> None:
    assert rendered(f"listen: {{{listen}}}\n", flags)[1] == [f"{address}:9003"]
