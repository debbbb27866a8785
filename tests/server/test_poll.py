"""Probes and scrapes against real sockets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from epp.config.pool import EndpointSpec
from epp.config.schema import Probe, Scrape
from epp.prefix_cache.index import PrefixIndex
from epp.server.client_credentials import TokenFile
from epp.server.feed import SignalFeed
from epp.server.metrics import Metrics
from epp.server.poll import (
    MAX_PER_SLOT,
    PROBES_AT,
    SLOTS,
    ListedModel,
    Poller,
    PollSchedule,
    Target,
    target_of,
)
from epp.server.process import SystemClock, Tasks
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint
from tests.kit.logs import own_lines
from tests.kit.shown import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping


@dataclass
class Seen:
    """A sink that remembers."""

    rtts: list[float | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)
    scrape_failures: list[str] = field(default_factory=list)
    listed: list[tuple[frozenset[str], Mapping[str, ListedModel]]] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def probed(self, _address: str, rtt_ms: float | None, _now_s: float) -> None:
        self.rtts.append(rtt_ms)
        self.event.set()

    def probe_failed(self, _address: str, problem: str, _now_s: float) -> None:
        self.failures.append(problem)
        self.event.set()

    def scraped(self, _address: str, sample: EngineSample, _now_s: float) -> None:
        self.samples.append(sample)
        self.event.set()

    def scrape_failed(self, _address: str, problem: str, _now_s: float) -> None:
        self.scrape_failures.append(problem)
        self.event.set()

    def models_listed(
        self, _address: str, unknown: frozenset[str], listed: Mapping[str, ListedModel]
    ) -> None:
        self.listed.append((unknown, listed))
        self.event.set()

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(10):
            while len(getattr(self, name)) < count:
                self.event.clear()
                await self.event.wait()


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def engine(status: int = 200, headers: list[dict[str, str]] | None = None) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        if headers is not None:
            headers.append(dict(request.headers))
        return web.Response(text=f"vllm:num_requests_running 3\n# {request.path}", status=status)

    async with serving(answer) as address:
        yield address


@asynccontextmanager
async def polled(
    target: Target, scrape: Scrape, *, timeout_s: float = 0.5, **changes: Any
) -> AsyncIterator[Seen]:
    """A poller at work; probes are as patient as scrapes."""
    seen = Seen()
    probe = Probe(interval_s=0.02, timeout_s=timeout_s)
    tasks = Tasks()
    token = TokenFile(target.bearer_token_file) if target.bearer_token_file else None
    if token is not None:
        tasks.start("token", token.follow(0.01))
    poller = Poller(
        target, probe=probe, scrape=scrape, sink=seen, clock=SystemClock(), token=token, **changes
    )
    tasks.start("poll", poller.run())
    yield seen
    await tasks.stop_all()


@asynccontextmanager
async def polling(address: str, spec: EndpointSpec | None = None, **changes: Any) -> AsyncIterator[Seen]:
    timeout_s = changes.pop("timeout_s", 0.5)
    scrape = Scrape(**{"interval_s": 0.02, **changes})
    target = target_of(address, spec or EndpointSpec(address=address), scrape)
    async with polled(target, scrape, timeout_s=timeout_s) as seen:
        yield seen


async def test_a_round_trip_counts_only_on_a_warm_connection() -> None:
    async with engine() as address, polling(address) as seen:
        await seen.until("rtts", 5)
        await seen.until("samples", 2)
    assert seen.rtts[0] is None, "the first one paid for the connection"
    assert all(rtt is not None and 0 < rtt < 500 for rtt in seen.rtts[2:])
    assert seen.samples[0] == EngineSample("vllm", running=3.0)


async def test_a_server_error_and_a_closed_port_are_failures() -> None:
    async with engine(status=503) as address, polling(address) as seen:
        await seen.until("failures", 1)
        await seen.until("scrape_failures", 1)
    assert seen.failures[0] == "status 503"
    assert seen.scrape_failures[0] == "status 503"
    async with polling(address) as seen:
        await seen.until("failures", 1)
    assert "refused" in seen.failures[0] or "Cannot connect" in seen.failures[0]


async def test_a_client_error_is_an_answer() -> None:
    async with engine(status=404) as address, polling(address) as seen:
        await seen.until("rtts", 2)
    assert seen.failures == []


def test_an_engine_that_does_not_know_its_names_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    fleet, metrics = Fleet(PrefixIndex()), Metrics()
    fleet.apply([Endpoint("a:1")], 0.0)
    feed = SignalFeed(fleet, metrics)

    def mismatch() -> float | None:
        return shown(metrics, "epp_endpoint_model_mismatch", endpoint="a:1")

    names = {"llama": ListedModel()}
    for unknown in (frozenset({"x", "y"}), frozenset({"x", "y"}), frozenset[str]()):
        feed.models_listed("a:1", unknown, names)
        assert mismatch() == len(unknown)
    feed.models_listed("gone:1", frozenset({"x"}), names)
    (line,) = own_lines(caplog, logging.ERROR)
    assert "a:1 does not serve x, y" in line
    metrics.forget_endpoint("a:1")
    assert mismatch() is None


@pytest.mark.parametrize(("endpoints", "moments"), [(1, SLOTS), (100, SLOTS), (1000, 1000 / MAX_PER_SLOT)])
@pytest.mark.parametrize("offset", [0.0, PROBES_AT])
def test_they_begin_a_few_at_a_time_and_keep_their_interval(
    endpoints: int, moments: float, offset: float
) -> None:
    schedule = PollSchedule(2.0, offset)
    schedule.spread(endpoints)
    slot_s = 2.0 / moments
    assert schedule.slot_s == pytest.approx(slot_s)
    first_s = now_s = 7.0 + schedule.pause_s(6.0, 7.0, 0.3)
    for _ in range(50):  # answers take their time, timers are late
        started_s, answered_s = now_s + slot_s * 0.1, now_s + slot_s * 0.4
        now_s = answered_s + schedule.pause_s(started_s, answered_s, 0.3)
        assert now_s / slot_s - offset == pytest.approx(round(now_s / slot_s - offset))
    assert now_s - first_s == pytest.approx(100.0, abs=1.1 * slot_s)
