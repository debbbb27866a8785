"""What a picker costs that nobody asks anything: endpoints scraped each second, and nothing else.

The endpoints are one process with as many loopback addresses (127.1.0.0/16), each answering probes and
scrapes with the metrics page of a vLLM server (some 40 KB) over connections that stay. Only the picker is
counted.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, cast

from epp.config.pool import EndpointSpec
from epp.lab.bench.children import picker
from epp.lab.bench.cpu import cpu_s, held

if TYPE_CHECKING:
    from epp.lab.bench.figures import Figures

ENDPOINTS = (100, 1000)
_WARM_S, _SECONDS = 4.0, 10.0
_BUCKETS = (
    "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5",
    "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf",
)  # fmt: skip
_HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds",
               "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
               "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
               "iteration_tokens_total", "request_params_max_tokens", "request_params_n",
               "request_max_num_generation_tokens", "inter_token_latency_seconds")  # fmt: skip


def exposition() -> bytes:
    """A metrics page as vLLM's: what is wanted among a few hundred lines that are not."""
    labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    lines = [
        "process_start_time_seconds 1.76e9",
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.41",
        f"vllm:prompt_tokens_total{{{labels}}} 1.2e+07",
        f"vllm:generation_tokens_total{{{labels}}} 3.1e+06",
        f"vllm:prefix_cache_queries_total{{{labels}}} 1.2e+07",
        f"vllm:prefix_cache_hits_total{{{labels}}} 8e+06",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="31250",{labels}}} 1.0',
        f'vllm:request_success_total{{finished_reason="stop",{labels}}} 9000.0',
    ]
    for name in _HISTOGRAMS:
        lines += [
            f"# HELP vllm:{name} Histogram of {name.replace('_', ' ')}.",
            f"# TYPE vllm:{name} histogram",
        ]
        lines += [f'vllm:{name}_bucket{{{labels},le="{bound}"}} 7213.0' for bound in _BUCKETS]
        lines += [f"vllm:{name}_count{{{labels}}} 9000.0", f"vllm:{name}_sum{{{labels}}} 4311.7"]
    return ("\n".join(lines) + "\n").encode()


class _Engine(asyncio.Protocol):
    """One connection: probes and scrapes, answered."""

    page = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        """A whole request comes at once: it is short."""
        body = self.page if data.startswith(b"GET /metrics") else b""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def measure(figures: Figures, endpoints: int, seconds: float = _SECONDS) -> None:
    """One round with so many endpoints.

    Raises:
        OSError: the system gives too few descriptors.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _Engine.page = exposition()
    loop = asyncio.get_running_loop()
    hosts = [f"127.1.{at >> 8}.{at & 255}" for at in range(1, endpoints + 1)]
    first = await loop.create_server(_Engine, hosts[0], 0, backlog=1024)
    port = first.sockets[0].getsockname()[1]
    servers = [first, *[await loop.create_server(_Engine, host, port) for host in hosts[1:]]]
    try:
        pool = [EndpointSpec(address=f"{host}:{port}") for host in hosts]
        with picker(pool, scrape={"interval_s": 1.0}, probe={"interval_s": 2.0}) as server:
            await asyncio.sleep(_WARM_S + endpoints / 200)
            before_s, begun_s = cpu_s(server.pid), loop.time()
            await asyncio.sleep(seconds)
            share = (cpu_s(server.pid) - before_s) / (loop.time() - begun_s)
            figures.add(
                f"idle/{endpoints} endpoints", "% core", share * 100, "scraped each second, probed each other"
            )
            figures.add(f"idle/{endpoints} memory", "MB", held(server.pid).rss_bytes / 1e6)
    finally:
        for one in servers:
            one.close()
