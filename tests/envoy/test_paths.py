"""What clients may ask engines for: Envoy's routes while the picker is dead, and the picker itself, path for path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from epp.apis.paths import UNREAD, OpenPaths
from epp.envoy.process import EnvoyProcess
from epp.extproc.types import HttpRequest, LocalReply
from epp.schedule.waiting import at_once
from tests.kit.apis import APIS, SHUT
from tests.kit.apps import app_of
from tests.kit.clock import ManualClock
from tests.kit.envoy import Replica, require_envoy, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LISTED = [path for api in APIS for path in api.paths] + " ".join(UNREAD.values()).split()
SHUT_PATHS = " ".join(SHUT.values()).split()
FURTHER = ("/metrics", "/pets/")
#: Path to whether it is open.
PATHS = (
    {path.replace("*", "one/two"): True for path in LISTED}
    | {path: False for path in SHUT_PATHS if path != "/metrics"}
    | {
        "/metrics": True,
        "/pets/cat": True,
        "/pets": False,
        "/metrics/": True,
        "/metrics/x": False,
        "/v1/models?after=/x": True,
        "/v1/chat/completions/": True,
        "/tenant/a-1/v1/messages": True,
        "/tenant/tokenize": False,
        "/v1": False,
        "/": False,
        "/V1/models": False,
        "/Sleep": False,
        "/v1/modelsx": False,
        "/v1/sleep": False,
        "/sleep?/v1/models": False,
        # vLLM answers these with metrics.
        "/metrics/v1/models": False,
        "/metricsx/v1/models?x": False,
        "/tenant/metrics/v1/messages": False,
        "/prometheus/metrics/inference/v1/generate": False,
        "/%6detrics/v1/models": False,
        "/v1/models/../../sleep": False,
        "/v1/files/%2e%2E/../sleep": False,
        "/v1/models/metrics/v": True,
    }
)
#: Envoy resolves these before it routes them, and sends them on resolved.
RESOLVED = {
    "/x/../v1/models": True,
    "//v1//models": True,
    "/v1%2Fmodels": True,
    "/v1/models/..%2f..%2fsleep": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    require_envoy()
    async with Replica() as replica:
        dead = settings([replica.endpoint], picker_port=1, open_paths=FURTHER)
        async with EnvoyProcess(dead) as envoy:
            yield envoy.listener_url


@pytest.mark.envoy
@pytest.mark.asyncio(loop_scope="module")
async def test_without_a_picker_envoy_opens_what_is_open(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        for path, is_open in (PATHS | RESOLVED).items():
            async with http.get(URL(url + path, encoded=True)) as answer:
                said = await answer.json()
                assert (path, answer.status) == (path, 200 if is_open else 404)
                assert is_open or said["error"]["message"]


def test_the_picker_opens_the_same(tmp_path: Path) -> None:
    director = app_of(tmp_path, ManualClock(0.0), request={"open_paths": list(FURTHER)}).director
    for path, is_open in PATHS.items():
        read = at_once(director.direct(HttpRequest("GET", path, {}, None), since_s=0.0))
        assert isinstance(read, LocalReply), "there is no endpoint"
        assert (path, read.details == "path") == (path, not is_open)
        if not is_open:
            assert read.status == 404
            assert json.loads(read.body)["error"]["message"]


def test_an_upgrade_opens_no_path(tmp_path: Path) -> None:
    director = app_of(tmp_path, ManualClock(0.0)).director
    upgrade = HttpRequest("GET", "/metrics", {"upgrade": "websocket"}, None, whole=False)
    read = at_once(director.direct(upgrade, since_s=0.0))
    assert isinstance(read, LocalReply)


def test_one_slash_opens_everything() -> None:
    paths = OpenPaths(["/"])
    assert all(path in paths for path in SHUT_PATHS)
