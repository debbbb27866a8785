"""An Envoy without a picker: one listener, one upstream, nothing between; what is added is added to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from epp.config.address import split_address
from epp.envoy.launch import tied_to_parent
from epp.envoy.process import find_envoy
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TYPES = "type.googleapis.com/envoy.extensions.filters"
_START_S, _STOP_S = 20.0, 5.0


def _at(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _bootstrap(upstream: str) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "plain",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"}},
        ],
    }
    filters = [{"name": "manager", "typed_config": manager}]
    endpoint = {"endpoint": {"address": _at(*split_address(upstream))}}
    return {
        "admin": {"address": _at("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [
                {"name": "plain", "address": _at("127.0.0.1", 0), "filter_chains": [{"filters": filters}]}
            ],
            "clusters": [
                {
                    "name": "upstream",
                    "load_assignment": {
                        "cluster_name": "upstream",
                        "endpoints": [{"lb_endpoints": [endpoint]}],
                    },
                }
            ],
        },
    }


@asynccontextmanager
async def plain_envoy(upstream: str) -> AsyncIterator[tuple[int, str]]:
    """Run it: its process id and the address that clients connect to.

    Raises:
        EppError: there is no Envoy, or it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        config, admin = Path(name) / "envoy.json", Path(name) / "admin"
        config.write_text(json.dumps(_bootstrap(upstream)))
        process = subprocess.Popen(  # noqa: S603, ASYNC220  # started once
            tied_to_parent(
                str(find_envoy()), "--config-path", str(config), "--admin-address-path", str(admin),
                "--concurrency", "1", "--disable-hot-restart", "--log-level", "critical",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process.pid, await _listening(admin)
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, _STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _listening(admin: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError, aiohttp.ClientError):
                url = f"http://{admin.read_text().strip()}/listeners?format=json"  # noqa: ASYNC240  # a few bytes
                async with session.get(url) as answer:
                    found = json.loads(await answer.read())["listener_statuses"][0]["local_address"]
                    return f"127.0.0.1:{found['socket_address']['port_value']}"
            await asyncio.sleep(0.05)
    raise EppError("the Envoy without a picker did not come up")
