"""What a picker without requests costs: endpoints scraped each second, and nothing else.

The endpoints are this process with as many loopback addresses (127.1.0.0/16), each answering probes and
scrapes with a metrics page of the size of a vLLM server's over connections that stay.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, cast

from epp.config.pool import EndpointSpec
from epp_lab.bench.processes import held, picker, spent_s

if TYPE_CHECKING:
    import argparse

    from epp_lab.bench.figures import Figures

ENDPOINTS = (100, 1000)
_WARM_S, _SECONDS = 4.0, 10.0


def exposition() -> bytes:
    """Make a metrics page like vLLM's: what is wanted among a few hundred lines that are not."""
    labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.41",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="31250",{labels}}} 1.0',
    ]
    for histogram in range(14):
        name = f"vllm:request_histogram_{histogram}_seconds"
        lines += [f"# HELP {name} Histogram of time.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} 7213.0' for bound in range(23)]
        lines += [f"{name}_count{{{labels}}} 9000.0", f"{name}_sum{{{labels}}} 4311.7"]
    return ("\n".join(lines) + "\n").encode()


class _Engine(asyncio.Protocol):
    """One connection: probes and scrapes, answered."""

    page = exposition()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        """Answer; a whole request comes at once, as it is short."""
        body = self.page if data.startswith(b"GET /metrics") else b""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure the CPU and memory of a picker at rest."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    for endpoints in ENDPOINTS * rounds:
        hosts = [f"127.1.{at >> 8}.{at & 255}" for at in range(1, endpoints + 1)]
        servers = [await loop.create_server(_Engine, hosts[0], 0, backlog=1024)]
        port = servers[0].sockets[0].getsockname()[1]
        servers += [await loop.create_server(_Engine, host, port) for host in hosts[1:]]
        pool = [EndpointSpec(address=f"{host}:{port}") for host in hosts]
        try:
            async with picker(pool, scrape={"interval_s": 1.0}, probe={"interval_s": 2.0}) as server:
                await asyncio.sleep(_WARM_S + endpoints / 200)
                lasted_s, used_s = await spent_s(asyncio.sleep(_SECONDS), [server.pid])
                share = used_s / lasted_s * 100
                found.add(f"idle/{endpoints} endpoints", "% core", share, "scraped each second")
                found.add(f"idle/{endpoints} memory", "MB", held(server.pid).rss_bytes / 1e6)
        finally:
            for one in servers:
                one.close()
