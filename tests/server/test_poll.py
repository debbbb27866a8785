"""Probes and scrapes against real sockets, by themselves and through a relay: who answers, whose answers count."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from epp.apis.listed_models import ListedModel
from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.config.schema import Probe, Scrape
from epp.feeds.files import replace_file
from epp.feeds.keep_alive import TokenFile
from epp.feeds.poll import (
    MAX_PER_SLOT,
    METRICS_PATHS,
    PROBES_AT,
    SLOTS,
    Poller,
    PollSchedule,
    SignalFeed,
    Target,
    target_of,
)
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.prefix_cache.index import PrefixIndex
from epp.server.process import SystemClock
from epp.signals.datastore import Datastore
from epp.signals.metrics_text import EngineSample
from epp.threads import Tasks
from epp.types import Endpoint
from tests.kit import certificates, relays
from tests.kit.logs import own_lines
from tests.kit.shown import shown
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


ENGINE = "10.9.9.9:8000"
SERVED = "x-gateway-destination-endpoint-served"


class Seen:
    """What pollers find, by kind; it stands for the picker's signals."""

    def __init__(self) -> None:
        self.rtts = list[float | None]()
        self.failures = list[str]()
        self.samples = list[EngineSample]()
        self.scrape_failures = list[str]()
        self.gpus = list[float]()
        self.event = asyncio.Event()

    def probed(self, _address: str, rtt_ms: float | None, _now_s: float) -> None:
        self.rtts.append(rtt_ms)
        self.event.set()

    def failed(self, _address: str, what: str, problem: str, _now_s: float, *, answered: bool) -> None:  # noqa: ARG002
        (self.failures if what == "probe" else self.scrape_failures).append(problem)
        self.event.set()

    def scraped(self, _address: str, sample: EngineSample, _now_s: float) -> None:
        self.samples.append(sample)
        self.event.set()

    def gpu_scraped(self, _address: str, utilization: float, _now_s: float) -> None:
        self.gpus.append(utilization)
        self.event.set()

    def models_listed(self, *_: object) -> None:
        """Nothing is asked of models here."""

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(240):
            while len(getattr(self, name)) < count:
                self.event.clear()
                await self.event.wait()


@asynccontextmanager
async def serving(
    answer: Callable[[web.Request], Awaitable[web.Response]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A server that answers any request."""
    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
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
async def polled(target: Target, scrape: Scrape) -> AsyncIterator[Seen]:
    """A poller at work; probes are as patient as scrapes."""
    seen: Any = Seen()
    probe = Probe(interval_s=0.02, timeout_s=30.0)
    tasks = Tasks()
    token = TokenFile(target.bearer_token_file) if target.bearer_token_file else None
    if token is not None:
        tasks.start("token", token.follow(0.01))
    poller = Poller(
        target,
        probe=probe,
        scrape=scrape,
        probes=PollSchedule(probe.interval_s),
        scrapes=PollSchedule(scrape.interval_s),
        sink=seen,
        clock=SystemClock(),
        token=token,
    )
    tasks.start("poll", poller.run())
    yield seen
    await tasks.stop_all()


@asynccontextmanager
async def polling(address: str, spec: EndpointSpec | None = None, **changes: Any) -> AsyncIterator[Seen]:
    scrape = Scrape(**{"interval_s": 0.02, **changes})
    target = target_of(address, spec or EndpointSpec(address=address), scrape)
    async with polled(target, scrape) as seen:
        yield seen


async def test_a_round_trip_counts_only_on_a_warm_connection() -> None:
    async with engine() as address, polling(address) as seen:
        await seen.until("rtts", 5)
        await seen.until("samples", 2)
    assert seen.rtts[0] is None, "the first one paid for the connection"
    assert all(rtt is not None and 0 < rtt < 30_000 for rtt in seen.rtts[2:])
    assert seen.samples[0] == EngineSample("vllm", running=3.0)


@pytest.mark.parametrize(("status", "found"), [(503, "status 503"), (404, None)])
async def test_a_server_error_fails_a_probe_and_a_client_error_is_an_answer(
    status: int, found: str | None
) -> None:
    async with engine(status) as address, polling(address) as seen:
        await seen.until("failures" if found else "rtts", 2)
        await seen.until("scrape_failures", 1)
    assert set(seen.failures) == ({found} if found else set())
    assert seen.scrape_failures[0] == f"no metrics at /metrics, status {status}"


class Paths:
    """An engine that shows its metrics at a path of its own, and JSON of its iterations at another.

    Attributes:
        path: of its metrics.
        asked: paths of scrapes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked = list[str]()

    async def answer(self, request: web.Request) -> web.Response:
        if request.path in ("/health", "/v1/models"):
            return web.Response()
        self.asked.append(request.path)
        if request.path == self.path:
            return web.Response(text=f"# at {request.path}\ntrtllm_num_requests_running 3\n")
        return web.json_response([]) if request.path == "/metrics" else web.Response(status=404)


@pytest.mark.parametrize("path", METRICS_PATHS)
async def test_metrics_are_found_by_asking_and_asked_for_there_from_then_on(path: str) -> None:
    shown_at = Paths(path)
    async with serving(shown_at.answer) as address, polling(address) as seen:
        await seen.until("samples", 3)
    tried = METRICS_PATHS.index(path) + 1
    assert shown_at.asked[: tried + 2] == [*METRICS_PATHS[:tried], path, path]
    assert seen.samples[0] == EngineSample("trtllm", running=3.0)


async def test_metrics_that_are_elsewhere_after_a_restart_are_found_again() -> None:
    shown_at = Paths("/prometheus/metrics")
    async with serving(shown_at.answer) as address, polling(address) as seen:
        await seen.until("samples", 1)
        shown_at.path = "/v1/metrics"
        await seen.until("samples", len(seen.samples) + 2)
    assert shown_at.asked[-1] == "/v1/metrics"


async def test_an_engine_without_metrics_is_asked_once_an_interval_until_it_has_some() -> None:
    shown_at = Paths("")
    async with serving(shown_at.answer) as address, polling(address) as seen:
        await seen.until("scrape_failures", 4)
        assert len(shown_at.asked) <= 1 + len(seen.scrape_failures)
        shown_at.path = "/prometheus/metrics"
        await seen.until("samples", 1)
    assert seen.scrape_failures[:2] == [
        "no metrics at /metrics, status 200",
        "no metrics at /prometheus/metrics, status 404",
    ]


async def test_the_busiest_gpu_that_the_exporter_beside_an_engine_shows() -> None:
    page = """# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",pod="a"} 12
DCGM_FI_DEV_GPU_UTIL{gpu="1",pod="a"} 87
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0"} 99
"""
    pages = ["DCGM_FI_DEV_MEM_COPY_UTIL 99\n", page]

    async def exporter(_: web.Request) -> web.Response:
        return web.Response(text=pages.pop(0) if len(pages) > 1 else page)

    async with (
        engine() as address,
        serving(exporter) as beside,
        polling(address, gpu_port=int(beside.rpartition(":")[2])) as seen,
    ):
        await seen.until("gpus", 2)
    assert seen.gpus[:2] == [0.87, 0.87]
    assert seen.scrape_failures == ["status 200, without the utilization of a GPU"]


async def test_a_closed_port_is_a_failure() -> None:
    async with polling("127.0.0.1:1") as seen:
        await seen.until("failures", 1)
    assert "Cannot connect" in seen.failures[0]


async def test_certificates_that_are_not_there_are_a_failure_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    spec = EndpointSpec(address="127.0.0.1:1", tls=True, ca_file=str(path))
    async with polling(spec.address, spec) as seen:
        await seen.until("failures", 2)
        await seen.until("scrape_failures", 2)
        assert f"ca_file {path}: No such file" in seen.failures[0]
        certificates.self_signed(path, tmp_path / "key.pem", "127.0.0.1")
        await until(lambda: "Cannot connect" in seen.failures[-1])


async def test_a_token_that_rotates_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    headers: list[dict[str, str]] = []
    async with engine(headers=headers) as address:
        spec = EndpointSpec(address=address, bearer_token_file=str(path))
        async with polling(address, spec) as seen:
            await seen.until("rtts", 1)
            replace_file(path, b"two ")
            await until(lambda: headers[-1]["Authorization"] == "Bearer two")
    assert headers[0]["Authorization"] == "Bearer one"


def test_scrapes_that_fail_are_counted_as_llm_d_s_data_sources_do() -> None:
    datastore, metrics = Datastore(PrefixIndex()), Metrics(TABLE)
    datastore.apply([Endpoint("a:1")], 0.0)
    feed = SignalFeed(datastore, metrics)
    for what, answered in (("probe", False), ("scrape", False), ("scrape", True), ("gpu-scrape", True)):
        feed.failed("a:1", what, "problem", 1.0, answered=answered)
    polled, read = "llm_d_epp_datalayer_poll_errors_total", "llm_d_epp_datalayer_extract_errors_total"
    assert shown(metrics, polled, source_type="metrics-data-source") == 1
    assert shown(metrics, polled, source_type="dcgm-data-source") is None
    for source, extractor in (
        ("metrics-data-source", "core-metrics-extractor"), ("dcgm-data-source", "dcgm-extractor"),
    ):  # fmt: skip
        assert shown(metrics, read, source_type=source, extractor_type=extractor) == 1


def test_an_engine_that_does_not_know_its_names_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    datastore, metrics = Datastore(PrefixIndex()), Metrics(TABLE)
    datastore.apply([Endpoint("a:1")], 0.0)
    feed = SignalFeed(datastore, metrics)

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
async def polling_through(folder: Path, address: str) -> AsyncIterator[Seen]:
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
    relays.certificates(tmp_path)
    async with relay(tmp_path, asked) as address, polling_through(tmp_path, address) as seen:
        await seen.until("rtts", 3)
        await seen.until("samples", 1)
        assert seen.rtts[0] is None, "the first opened the connection"
        assert all(rtt_ms is not None for rtt_ms in seen.rtts[1:])
        assert seen.samples[0].running == 3.0
        assert (set(asked), seen.failures) == ({ENGINE}, [])


async def test_an_answer_of_another_endpoint_is_none_of_this_one(tmp_path: Path) -> None:
    relays.certificates(tmp_path)
    elsewhere = relay(tmp_path, [], served="10.9.9.1:8000")
    async with elsewhere as address, polling_through(tmp_path, address) as seen:
        await seen.until("failures", 2)
        await seen.until("scrape_failures", 1)
    assert "10.9.9.1:8000 answered" in seen.failures[0]
    assert (seen.rtts, seen.samples) == ([], [])
