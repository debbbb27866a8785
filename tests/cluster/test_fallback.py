"""Two pickers behind one real Envoy, of which the first is killed or stands still: the second decides."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest

from epp.ops.doctor.context import Page
from tests.kit.nats import nats_server
from tests.kit.picker import CONFIG, PickerProcess, Serving, until_seen
from tests.kit.ports import free_ports
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.envoy


class Fallback:
    """Two pickers that share, and an Envoy that prefers the first.

    Args:
        folder: for all of it.
        url: of NATS.
    """

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        config: dict[str, Any] = {
            "nats": {"url": url},
            "prefix": {"secret_file": str(folder / "secret")},
            "policy": {"name": "prefix-cache"},
        }
        port = free_ports()
        self.serving = Serving(
            folder / "one",
            envoy={"fallback_pickers": (("127.0.0.1", port),), "message_timeout_ms": 500},
            **config,
        )
        listen = {**CONFIG["listen"], "grpc": f"127.0.0.1:{port}"}
        config["pool"] = {**CONFIG["pool"], "file": str(folder / "one" / "endpoints.yaml")}
        for name in ("one", "two"):
            (folder / name).mkdir()
        self.own = self.serving.picker
        self.other = PickerProcess(folder / "two", **config, listen=listen)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.serving)
        self._stack.push_async_callback(self.other.stop)
        await self.other.start()
        await until(self.other.ready)
        await until(self.own.ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def until_healthy(self, count: int) -> None:
        """Wait until Envoy finds so many of the pickers fit."""
        serving, wanted = self.serving, f"cluster.picker.membership_healthy: {count}"

        async def found() -> bool:
            url = f"{serving.envoy.admin_url}/stats?filter=membership_healthy"
            async with serving.http.get(url) as answer:
                return wanted in (await answer.text()).splitlines()

        await until(found)

    async def away(self, how: signal.Signals) -> None:
        """Let the first picker die, or stand still."""
        if how is signal.SIGKILL:
            await self.own.kill()
        else:
            self.own.signal(how)

    async def back(self, how: signal.Signals) -> None:
        """End that."""
        if how is signal.SIGKILL:
            await self.own.start()
        else:
            self.own.signal(signal.SIGCONT)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Fallback]:
    async with nats_server(tmp_path) as nats, Fallback(tmp_path, nats.url) as pair:
        await pair.until_healthy(2)
        yield pair


async def until_all_is_told(picker: PickerProcess) -> None:
    """Wait until each decision of a picker has the outcome that only Envoy's report tells."""

    async def told() -> bool:
        page = Page(await picker.metrics())
        completed = page.total("epp_outcomes_total", cause="completed", status="2xx")
        return completed == page.total("epp_decisions_total")

    await until(told)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_while_a_picker_is_away_another_decides_and_no_request_fails(
    pair: Fallback, how: signal.Signals
) -> None:
    async with pair.serving.under_load(clients=4) as seen:
        await until_seen(seen, 20)
        await pair.away(how)
        await pair.other.until_metric("epp_decisions_total", lambda value: value >= 100)
        await pair.back(how)
        decided = await pair.own.metric("epp_decisions_total")
        await pair.own.until_metric("epp_decisions_total", lambda value: value >= decided + 100)
    assert set(seen) == {200}


async def test_reports_reach_the_picker_that_decided_wherever_they_arrive(pair: Fallback) -> None:
    await pair.away(signal.SIGKILL)
    await pair.until_healthy(1)

    async def heard() -> bool:
        assert await pair.serving.streamed("you decide", 8)
        return await pair.other.metric("epp_reports_total", receiver="first-token", result="received") > 0

    await until(heard)
    await until_all_is_told(pair.other)
    await pair.back(signal.SIGKILL)
    await pair.until_healthy(2)

    async def decided() -> bool:
        assert await pair.serving.streamed("you decide again", 8)
        return await pair.own.metric("epp_decisions_total") > 0

    await until(decided)
    await until_all_is_told(pair.own)
    arrived = await pair.own.metric("epp_reports_total", receiver="access-log", result="received")
    assert arrived == 0, "Envoy's log still goes to the other picker"
    assert await pair.other.metric("epp_late_reports_total") == 0


async def test_with_no_picker_left_envoy_balances_by_itself(pair: Fallback) -> None:
    await pair.own.kill()
    await pair.other.kill()
    await pair.until_healthy(0)
    assert [(await pair.serving.chat())[0] for _ in range(6)] == [200] * 6
