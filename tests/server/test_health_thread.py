"""Probes while the picker's event loop stands still, on real sockets, and how the process ends then."""

from __future__ import annotations

import asyncio
import http.client
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.config.listen import Listen
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.server import health_thread
from epp.server.command import STALLED
from epp.server.health_thread import HealthThread, StallClock
from epp.server.tls import Certificates
from tests.kit.apps import app_of
from tests.kit.hanging import HANGING, hang
from tests.kit.picker import CONFIG, PickerProcess
from tests.kit.replicas import metric
from tests.kit.transports import BOTH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.server.app import App

ANY = "127.0.0.1:0"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    ("looks", "stalled_s"),
    [
        pytest.param([(0.25, 0.0)] * 4, 1.0, id="a loop that waits"),
        pytest.param([(0.25, 0.25)] * 4, 1.0, id="a loop that computes"),
        pytest.param([(0.25, 0.0), (600.0, 0.0), (0.25, 0.0)], 0.75, id="the process was stopped"),
        pytest.param([(0.25, 0.0), (3.0, 3.0)], 3.25, id="C code held the interpreter's lock"),
        pytest.param([(0.25, 0.0), (3.0, 9.0)], 3.25, id="and several threads computed"),
        pytest.param([(0.01, 0.0)] * 2, 0.02, id="looks that come early"),
    ],
)
def test_what_counts_as_a_stall(looks: list[tuple[float, float]], stalled_s: float) -> None:
    now_s, cpu_s = 100.0, 7.0
    clock = StallClock(0.25, now_s, cpu_s)
    for later_s, used_s in looks:
        now_s, cpu_s = now_s + later_s, cpu_s + used_s
        clock.look(now_s, cpu_s)
    assert clock.stalled_s == pytest.approx(stalled_s)
    clock.beat()
    assert clock.stalled_s == 0.0


@pytest.mark.parametrize(
    ("stalled_s", "ready", "live"),
    [(2.4, True, True), (2.5, False, True), (4.9, False, True), (5.0, False, False)],
)
def test_readiness_fails_at_half_of_the_limit_and_liveness_at_the_limit(
    tmp_path: Path, stalled_s: float, ready: bool, live: bool
) -> None:
    health = HealthThread(Listen(), Certificates(tmp_path, ""), "", metrics=Metrics(TABLE), max_connections=1)
    health._not_ready, health._clock = "", StallClock(0.25, 0.0, 0.0)
    health._clock.stalled_s = stalled_s
    assert (not health.not_ready(), not health.not_live()) == (ready, live)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    any_ports = dict.fromkeys(("grpc", "http", "first_token", "health"), ANY)
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '127.0.0.1:1'}]")
    app = app_of(tmp_path, listen={**any_ports, "stall_limit_s": 0.4})
    yield app
    await app.stop(0.0)


class Asker:
    """A client in a thread of its own."""

    def __init__(self, app: App) -> None:
        self._http, self._channel = app.addresses["http"], grpc.insecure_channel(app.addresses["health"])
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._http, timeout=240)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    def until(self, path: str, status: int) -> str:
        while (found := self.get(path))[0] != status:
            time.sleep(0.01)
        return found[1]

    def health(self, name: str) -> int:
        status: int = self._health.Check(health_pb2.HealthCheckRequest(service=name), timeout=240).status
        return status

    def close(self) -> None:
        self._channel.close()


async def test_probes_tell_of_a_loop_that_stands_still_and_of_one_that_goes_on(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_thread, "_ANSWER_S", 0.1)
    stacks: list[str] = []
    await app.start(lambda _, stack: stacks.append(stack))
    seen: dict[str, Any] = {}
    asker, asked = Asker(app), threading.Event()

    def ask() -> None:
        seen["not ready"] = asker.until("/readyz", 503)
        seen["not live"] = asker.until("/livez", 503)
        seen["health"] = [asker.health(name) for name in ("readiness", "liveness")]
        seen["metrics"] = asker.get("/metrics")
        asked.set()

    await asyncio.to_thread(asker.until, "/readyz", 200)
    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(240)  # on the loop, which stands still meanwhile
    thread.join()
    assert seen["not ready"].startswith("the event loop has stood still for 0.")
    assert seen["not live"].startswith("the event loop has stood still for ")
    assert seen["health"] == [NOT_SERVING, NOT_SERVING]
    assert seen["metrics"] == (503, "the picker's event loop does not answer\n")
    assert any("asked.wait(240)" in stack for stack in stacks)
    await asyncio.to_thread(asker.until, "/readyz", 200)
    assert (await asyncio.to_thread(asker.get, "/livez"))[0] == 200
    assert [await asyncio.to_thread(asker.health, name) for name in ("", "liveness")] == [SERVING, SERVING]
    text = await asyncio.to_thread(asker.until, "/metrics", 200)
    assert metric(text, "epp_event_loop_stall_seconds_total") > 0.1
    asker.close()


def listening(transport: str) -> dict[str, object]:
    return {**CONFIG["listen"], "transport": transport, "stall_limit_s": 1}


@pytest.mark.parametrize("transport", BOTH)
async def test_a_picker_whose_loop_hangs_logs_where_and_ends(tmp_path: Path, transport: str) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    picker = PickerProcess(tmp_path, program=HANGING, listen=listening(transport))
    await picker.start()
    picker.signal(signal.SIGUSR1)
    assert await picker.ended() == STALLED
    assert "CRITICAL" in picker.log()
    assert f"in {hang.__name__}" in picker.log()
    await picker.stop()
