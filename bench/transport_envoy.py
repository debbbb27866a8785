"""A real Envoy for the transport bench: one process, one listener for each row, no upstream.

Each listener has an ext_proc filter to its row's server and a route that answers by itself, with the
destination that the server chose in two response headers: one from the request header it set, one from its
dynamic metadata. A bench that reads both back knows that the whole exchange took place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from bench.transport_load import ANSWER_BODY
from epp.envoy.process import find_envoy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TYPES = "type.googleapis.com/envoy.extensions"
_DESTINATION_HEADER = "x-gateway-destination-endpoint"
_MAX_BODY_BYTES = 1 << 20
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0


def _loopback(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _ext_proc(row: str) -> dict[str, Any]:
    """Headers and whole body to the server, nothing of the response."""
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": row}, "timeout": "30s"},
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
            "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
        },
    }


def _buffer() -> dict[str, Any]:
    """Holds a request until its body is complete, as buffered ext_proc does, and nothing else."""
    return {
        "name": "envoy.filters.http.buffer",
        "typed_config": {
            "@type": f"{_TYPES}.filters.http.buffer.v3.Buffer",
            "max_request_bytes": _MAX_BODY_BYTES,
        },
    }


def _route() -> dict[str, Any]:
    """Answers by itself, saying which destination the server chose."""
    metadata = f"%DYNAMIC_METADATA(envoy.lb:{_DESTINATION_HEADER})%"
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": ANSWER_BODY.decode()}},
        "response_headers_to_add": [
            {"header": {"key": "x-by-header", "value": f"%REQ({_DESTINATION_HEADER})%"}},
            {"header": {"key": "x-by-metadata", "value": metadata}},
        ],
    }


def expected_answer(destination: str | None) -> bytes:
    """The header lines that an answer has when a server chose ``destination``, or none did."""
    if destination is None:
        return b"HTTP/1.1 200 OK\r\n"
    return f"x-by-header: {destination}\r\nx-by-metadata: {destination}\r\n".encode()


def _listener(row: str, *, with_ext_proc: bool) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": row,
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
        "http_filters": [_ext_proc(row) if with_ext_proc else _buffer(), router],
    }
    return {
        "name": row,
        "address": _loopback(0),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _cluster(row: str, address: dict[str, Any]) -> dict[str, Any]:
    """The server of one row, over HTTP/2."""
    options = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {
        "name": row,
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
        "load_assignment": {"cluster_name": row, "endpoints": endpoints},
    }


def configuration(servers: Mapping[str, int | str | None]) -> dict[str, Any]:
    """Envoy's bootstrap: for each row its server's loopback port, Unix socket path, or None for no filter."""
    clusters = [
        _cluster(row, {"pipe": {"path": where}} if isinstance(where, str) else _loopback(where))
        for row, where in servers.items()
        if where is not None
    ]
    listeners = [_listener(row, with_ext_proc=where is not None) for row, where in servers.items()]
    return {
        "admin": {"address": _loopback(0)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }


class Envoy:
    """A running Envoy; an asynchronous context manager that leaves no process behind.

    Attributes:
        pid: its process id.
        ports: the loopback port of each row's listener.
    """

    def __init__(self, servers: Mapping[str, int | str | None], folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        binary = str(find_envoy())
        config, admin, log = (self._folder / name for name in ("envoy.json", "admin", "envoy.log"))
        config.write_text(json.dumps(configuration(self._servers)), encoding="utf-8")
        command: Sequence[str] = (
            *(binary, "--config-path", str(config), "--admin-address-path", str(admin)),
            *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "--log-path", str(log)),
        )
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  # started once
        self.pid = self._process.pid
        try:
            await self._wait_ready(admin, log)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()  # killed: returns at once

    async def _wait_ready(self, admin: Path, log: Path) -> None:
        """Fills ``ports`` once every listener is bound."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _START_TIMEOUT_S
        while loop.time() < deadline_s:
            if self._process is not None and self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                url = f"http://{admin.read_text(encoding='ascii').strip()}"  # noqa: ASYNC240  # a few bytes
                self.ports = await asyncio.to_thread(_listener_ports, url)
                if len(self.ports) == len(self._servers):
                    return
            await asyncio.sleep(0.05)
        said = log.read_text(encoding="utf-8")[-2000:] if log.exists() else ""  # noqa: ASYNC240
        raise RuntimeError(f"Envoy did not start: {said}")


def _listener_ports(admin_url: str) -> dict[str, int]:
    """The port of each bound listener, once Envoy reports that it is live."""
    with urllib.request.urlopen(f"{admin_url}/ready", timeout=2) as answer:  # noqa: S310  # loopback http
        if answer.read().strip() != b"LIVE":
            return {}
    with urllib.request.urlopen(f"{admin_url}/listeners?format=json", timeout=2) as answer:  # noqa: S310
        statuses = json.load(answer)["listener_statuses"]
    return {one["name"]: one["local_address"]["socket_address"]["port_value"] for one in statuses}
