"""Probes and scrapes through a relay: who may ask, who answers, and whose answers count."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.config.schema import Scrape
from epp.server.poll import target_of
from tests.kit.relays import certificates
from tests.server.test_poll import Seen, polled, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ENGINE = "10.9.9.9:8000"
SERVED = "x-gateway-destination-endpoint-served"


@asynccontextmanager
async def relay(folder: Path, asked: list[str], served: str | None = None) -> AsyncIterator[str]:
    """A relay that answers for the endpoint it is asked for, or always for ``served``."""

    async def answer(request: web.Request) -> web.Response:
        wanted = request.headers["x-gateway-destination-endpoint"]
        asked.append(wanted)
        return web.Response(text="vllm:num_requests_running 3\n", headers={SERVED: served or wanted})

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    tls.load_cert_chain(folder / "relay.crt", folder / "relay.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    async with serving(answer, tls) as address:
        yield address


@asynccontextmanager
async def polling(folder: Path, address: str) -> AsyncIterator[Seen]:
    scrape, spec = Scrape(interval_s=0.02), EndpointSpec(address=ENGINE, region="far")
    async with polled(target_of(ENGINE, spec, scrape, through(folder, address)), scrape) as seen:
        yield seen


def through(folder: Path, address: str) -> Relays:
    return Relays(
        regions={"far": address},
        ca_file=str(folder / "ca.crt"),
        cert_file=str(folder / "global.crt"),
        key_file=str(folder / "global.key"),
    )


async def test_an_endpoint_that_only_its_relay_reaches_is_probed_and_scraped(tmp_path: Path) -> None:
    asked: list[str] = []
    certificates(tmp_path)
    async with relay(tmp_path, asked) as address, polling(tmp_path, address) as seen:
        await seen.until("rtts", 3)
        await seen.until("samples", 1)
        assert seen.rtts[0] is None, "the first opened the connection"
        assert all(rtt_ms is not None for rtt_ms in seen.rtts[1:])
        assert seen.samples[0].running == 3.0
        assert (set(asked), seen.failures) == ({ENGINE}, [])


async def test_an_answer_of_another_endpoint_is_none_of_this_one(tmp_path: Path) -> None:
    certificates(tmp_path)
    elsewhere = relay(tmp_path, [], served="10.9.9.1:8000")
    async with elsewhere as address, polling(tmp_path, address) as seen:
        await seen.until("failures", 2)
        await seen.until("scrape_failures", 1)
    assert "10.9.9.1:8000 answered" in seen.failures[0]
    assert (seen.rtts, seen.samples) == ([], [])
