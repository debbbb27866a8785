"""Probes and scrapes against real sockets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from epp.clock import ManualClock
from epp.config.pool import EndpointSpec
from epp.config.schema import Config, Probe, Scrape
from epp.prefix_cache.index import PrefixIndex
from epp.server.client_credentials import TokenFile
from epp.server.clock import SystemClock
from epp.server.feed import SignalFeed
from epp.server.keep_alive import Answer
from epp.server.listed import ListedModel, parse_models
from epp.server.metrics import Metrics
from epp.server.poll import (
    BEATS,
    PROBES_AT,
    SHORTEST_PAUSE_S,
    TOGETHER,
    Beat,
    Poller,
    Target,
    new_beats,
    own_pause_s,
    target_of,
)
from epp.server.tasks import Tasks
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from tests.kit.logs import own_lines
from tests.kit.shown import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from epp.server.poll import Connection


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
async def polled(target: Target, scrape: Scrape, **changes: Any) -> AsyncIterator[Seen]:
    """A poller at work; probes are as patient as scrapes."""
    seen = Seen()
    probe = Probe(interval_s=0.02, timeout_s=scrape.timeout_s)
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
    scrape = Scrape(**{"interval_s": 0.02, "timeout_s": 0.5, **changes})
    target = target_of(address, spec or EndpointSpec(address=address), scrape)
    async with polled(target, scrape) as seen:
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


async def test_a_fault_of_ours_in_one_work_ends_neither_it_nor_the_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("epp.server.poll.FAULT_PAUSE_S", 0.02)
    taken = Seen.scraped

    def odd(seen: Seen, address: str, sample: EngineSample, now_s: float) -> None:
        if len(seen.scrape_failures) < 2:
            raise OverflowError("nobody foresaw this")
        taken(seen, address, sample, now_s)

    monkeypatch.setattr(Seen, "scraped", odd)
    async with engine() as address, polling(address) as seen:
        await seen.until("samples", 2)
        await seen.until("rtts", 3)
        assert seen.scrape_failures == ["OverflowError: nobody foresaw this"] * 2
        assert not seen.failures
    assert "".join(own_lines(caplog)).count("Traceback") == 2


async def test_names_are_held_against_those_that_the_engine_lists() -> None:
    """Not before it is up, and also where it lists adapters; not where it lists nothing."""
    ready = False

    async def answer(request: web.Request) -> web.Response:
        if request.path != "/v1/models":
            return web.Response()
        if not ready:
            raise web.HTTPServiceUnavailable
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": "llama-a", "max_model_len": 4096}, {"id": "lora", "parent": "m"}],
            }
        )

    async with serving(answer) as address:
        spec = EndpointSpec(address=address, models={"chat": "llama-a", "big": "llama-b"}, adapters=["lora"])
        async with polling(address, spec) as seen:
            await seen.until("rtts", 2)
            assert not seen.listed
            ready = True
            await seen.until("listed", 1)
            assert seen.listed == [
                (frozenset({"llama-b"}), {"llama-a": ListedModel(4096), "lora": ListedModel(parent="m")})
            ]
        async with polling(address) as unnamed:
            await unnamed.until("listed", 1)
            assert unnamed.listed == [
                (frozenset(), {"llama-a": ListedModel(4096), "lora": ListedModel(parent="m")})
            ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok",
        b"[]",
        b'{"data": null}',
        b'{"data": [5]}',
        b'{"data": [{"id": 5}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_list_of_models_that_is_none_says_nothing(body: bytes) -> None:
    assert parse_models(body) == {}


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


def test_lists_of_endpoints_that_left_are_forgotten() -> None:
    fleet = Fleet(PrefixIndex())
    feed = SignalFeed(fleet, Metrics())
    for number in range(20):
        fleet.apply([Endpoint(f"10.0.0.{number}:1"), Endpoint("a:1")], float(number))
        feed.models_listed(f"10.0.0.{number}:1", frozenset({"m"}), {})
    assert len(feed._unknown) <= len(fleet)


def test_a_manual_clock_does_not_run_backwards() -> None:
    clock = ManualClock(5.0, wall_s=100.0)
    clock.advance(2.5)
    assert (clock.mono_s(), clock.wall_s()) == (7.5, 102.5)


@pytest.mark.parametrize(("endpoints", "moments"), [(1, BEATS), (100, BEATS), (1000, 1000 / TOGETHER)])
@pytest.mark.parametrize("share", [0.0, PROBES_AT])
def test_they_begin_a_few_at_a_time_and_keep_their_interval(
    endpoints: int, moments: float, share: float
) -> None:
    beat = Beat(share)
    assert beat.pause_s(3.21, 0.77) == 0.77, "alone, any moment will do"
    beat.share(2.0, endpoints)
    assert beat.period_s == pytest.approx(2.0 / moments)
    first_s = now_s = 7.0 + beat.pause_s(7.0, 0.6)
    for _ in range(50):  # answers take their time, timers are late
        started_s = now_s + beat.period_s * 0.1
        answered_s = started_s + beat.period_s * 0.3
        now_s = answered_s + beat.pause_s(answered_s, 2.0 - (answered_s - started_s))
    assert now_s - first_s == pytest.approx(100.0)
    assert now_s / beat.period_s - share == pytest.approx(round(now_s / beat.period_s - share))


@pytest.mark.parametrize("held_up_s", [0.0, 0.3, 1.2, 3600.0])
def test_endpoints_that_are_late_together_go_back_to_moments_of_their_own(held_up_s: float) -> None:
    shares, interval_s = [at / 10 for at in range(10)], 2.0
    asked_s = dict.fromkeys(shares, 0.0)
    for _ in range(3):  # everyone at once at start; then at moments of their own
        asked_s = {
            at: now + 0.01 + own_pause_s(now, now + 0.01, interval_s, at) for at, now in asked_s.items()
        }
    woken_s = max(asked_s.values()) + held_up_s
    asked_s = {at: max(now, woken_s) for at, now in asked_s.items()}
    for _ in range(2):
        before_s, asked_s = (
            asked_s,
            {at: now + 0.01 + own_pause_s(now, now + 0.01, interval_s, at) for at, now in asked_s.items()},
        )
        for at, now in asked_s.items():
            assert interval_s / 2 <= now - before_s[at] <= interval_s * 1.5 + 1e-9
    assert len({round(now % interval_s, 6) for now in asked_s.values()}) == len(shares)


def test_an_answer_that_takes_longer_than_the_interval_is_asked_for_again_soon() -> None:
    assert own_pause_s(10.0, 17.3, 2.0, 0.0) == SHORTEST_PAUSE_S
    assert own_pause_s(10.0, 10.3, 2.0, 0.0) == pytest.approx(1.7)
    assert own_pause_s(10.0, 10.3, 2.0, 0.25) == pytest.approx(2.2)


@pytest.mark.parametrize("endpoints", [1, 100, 1000])
def test_probes_and_scrapes_begin_at_moments_of_their_own(endpoints: int) -> None:
    default = Config()
    probe, scrape = new_beats()
    probe.share(default.probe.interval_s, endpoints)
    scrape.share(default.scrape.interval_s, endpoints)
    for at in range(50):
        begins_s = 100.0 + at * 0.317
        begins_s += probe.pause_s(begins_s, 0.2)
        away_s = abs(begins_s - round(begins_s / scrape.period_s) * scrape.period_s)
        assert away_s > 0.2 * scrape.period_s


async def test_a_round_trip_ends_where_the_answer_comes_not_where_it_is_looked_at() -> None:
    seen = Seen()

    class Slow(Poller):
        def _connection(self) -> Connection:
            return Late()

    class Late:
        opened = 0

        async def get(self, *_: object) -> Answer:
            clock.advance(0.5)  # others were at work when it came
            return Answer(200, b"", took_s=0.004)

        def close(self) -> None:
            return

    clock = ManualClock()
    poller = Slow(
        Target("a:1", "http://a:1", None, "", ""),
        probe=Probe(interval_s=1.0),
        scrape=Scrape(interval_s=0),
        sink=seen,
        clock=clock,
    )
    task = asyncio.ensure_future(poller.run())
    await seen.until("rtts", 1)
    task.cancel()
    assert seen.rtts == [pytest.approx(4.0)]


def test_a_beat_ends_no_pause_before_it_began() -> None:
    beat = Beat()
    beat.share(1.0, 10)
    for at in range(100):
        assert 0.0 < beat.pause_s(at * 0.0137, 0.01) <= beat.period_s * 1.5
