"""A real Prometheus for tests: whether there is one, a server that scrapes a picker, and its query API."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import pytest

from epp.envoy.launch import stop, tied_to_parent
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

_LISTENING = re.compile(r'msg="?Listening on"? address=(\S+)')


def require(program: str) -> str:
    """Path of a program of the Prometheus package; without it the test is skipped, on CI it fails."""
    path = shutil.which(program)
    if path is None:
        reason = f"{program} is not installed (apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


class Prometheus:
    """A server that scrapes one target four times a second, as an async context manager.

    Args:
        folder: its configuration, log and data.
        target: ``host:port`` of the picker's HTTP listener.
        rules: rule files.
    """

    def __init__(self, folder: Path, target: str, rules: list[Path]) -> None:
        self._folder, self._target, self._rules = folder, target, rules
        self.url = ""

    async def __aenter__(self) -> Self:
        program = require("prometheus")
        self._folder.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"},
            "rule_files": [str(path.resolve()) for path in self._rules],
            "scrape_configs": [{"job_name": "epp", "static_configs": [{"targets": [self._target]}]}],
        }
        (self._folder / "prometheus.yaml").write_text(json.dumps(config))
        log = self._folder / "prometheus.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(
                    program,
                    f"--config.file={self._folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ),
                stdout=output,
                stderr=output,
            )
        try:
            await until(lambda: self._process.returncode is not None or _LISTENING.search(log.read_text()))
            found = _LISTENING.search(log.read_text())
            assert found, log.read_text()
            self.url = f"http://{found[1]}"
            await until(self._ready)  # it listens before its storage is open
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _ready(self) -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/-/ready") as answer:
            return answer.status == 200

    async def __aexit__(self, *_: object) -> None:
        await stop(self._process, 10)

    async def get(self, path: str, **parameters: str) -> Any:
        """The ``data`` of an API answer; an error of Prometheus' fails the test with its words."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.url}/api/v1/{path}", params=parameters) as answer,
        ):
            body = await answer.json()
        assert body["status"] == "success", (parameters, body.get("error"))
        assert not body.get("warnings"), (parameters, body)
        return body["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        result: list[dict[str, Any]] = (await self.get("query", query=expression))["result"]
        return result

    async def until(self, expression: str) -> None:
        """Wait until an expression has a sample; 30 seconds at most."""
        try:
            await until(lambda: self.query(expression))
        except TimeoutError:
            raise AssertionError(f"{expression} stayed empty") from None
