"""Regions as peers, all of it real: pickers, Envoys, NATS, replicas that answer; what users see when parts fail."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from epp.config.federation import DOMAIN
from epp.records.schema import join
from epp.records.verify import verify
from epp.regions.hop import Hop, sign
from tests.kit.nats import nats_server
from tests.kit.records import command, recorded
from tests.kit.regions import BOUND, World, one_each, world
from tests.kit.replicas import MODEL, QUICK
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.kit.picker import Serving

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

#: Two requests at once, a third of a second each: a few clients fill it.
SMALL = replace(QUICK, name="small", max_running=2, decode_curve=((1, 20.0),))
#: From when on no new request may fail: a peer is known to be away within two seconds, on a busy machine later.
BOUND_S = 4.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("regions")
    server = nats_server(folder)
    async with (
        server,
        world(
            folder, server, one_each("eu", "us", engine_class=SMALL), envoy={"message_timeout_ms": 500}
        ) as made,
    ):
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def made(running: World) -> World:
    await running.meet()
    return running


@dataclass
class Asked:
    """A request of a client.

    Attributes:
        began_s: monotonic time.
        took_s: until its answer was there.
        status: of the answer.
    """

    began_s: float
    took_s: float
    status: int


@asynccontextmanager
async def load(serving: Serving, clients: int) -> AsyncIterator[list[Asked]]:
    """Clients that always have one request under way each; what became of these."""
    stop, seen = asyncio.Event(), list[Asked]()

    async def keep_asking() -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            status, _ = await serving.chat(f"question {len(seen)} ", max_tokens=16)
            seen.append(Asked(began_s, time.monotonic() - began_s, status))

    tasks = [asyncio.ensure_future(keep_asking()) for _ in range(clients)]
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def engine(serving: Serving) -> int:
    """Requests that a region's engine has had."""
    return serving.replicas[0].requests


async def until_more(serving: Serving, more: int = 3) -> None:
    wanted = engine(serving) + more
    await until(lambda: engine(serving) >= wanted)


def of_region(serving: Serving) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Decisions with their outcomes."""
    requests = join(recorded(serving.folder / "records"))
    return [(each.decision, each.outcome) for each in requests if each.outcome is not None]


async def test_a_request_bound_to_a_peer_is_answered_there_and_told_in_both(made: World) -> None:
    eu, us = made.regions.values()
    before = engine(eu), engine(us)
    assert (await eu.chat(headers={BOUND: "us"}))[0] == 200
    assert (engine(eu), engine(us)) == (before[0], before[1] + 1)

    def forwarded() -> list[tuple[str, Mapping[str, Any]]]:
        told = of_region(us)
        return [(each["origin_decision"], end) for each, end in told if each.get("origin_region") == "eu"]

    await until(lambda: len(forwarded()) == 1)
    ((origin, there),) = forwarded()
    await until(lambda: origin in [each["id"] for each, _ in of_region(eu)])
    (here,) = [end for each, end in of_region(eu) if each["id"] == origin]
    assert here["served"] == made.forwards["eu"]["us"]
    for fact in ("cause", "status", "completion_tokens"):
        assert here[fact] == there[fact]
    assert 0.0 < there["ttft_ms"] <= here["ttft_ms"] + 1.0
    for serving in made.regions.values():
        assert verify(recorded(serving.folder / "records")).differences == []
    places = [word for serving in (us, eu) for word in ("--records", serving.folder / "records")]
    assert command("explain", "--trace", origin, *places, "--out", eu.folder / "trace.json") == 0
    events = json.loads((eu.folder / "trace.json").read_text())["traceEvents"]
    assert {each["args"]["name"] for each in events if each["name"] == "process_name"} == {"eu", "us"}


async def test_what_finds_no_room_goes_to_a_peer(made: World) -> None:
    eu, us = made.regions.values()
    async with load(eu, 6) as seen:
        await until_more(us)
    assert {each.status for each in seen} == {200}
    assert await eu.picker.metric("epp_region_forwarded_total", region="us") > 0
    for direction in ("sent", "received"):
        assert await eu.picker.metric("epp_region_bytes_total", direction=direction) > 0


async def as_eu(made: World, number: int, *, bound: bool) -> tuple[int, str]:
    """Ask the region us in the name of its peer, by hand; status and text of the answer."""
    us = made.regions["us"]
    files = us.folder.parent
    context = ssl.create_default_context(cafile=files / "ca.crt")
    context.load_cert_chain(files / "eu.crt", files / "eu.key")
    soon_ms = round(time.time() * 1e3) + 5_000
    hop = Hop(f"by-hand-{bound}-{number}", f"r-{number}", soon_ms, ("eu",), ("us",), bound=bound)
    headers = {"x-epp-hop": sign(hop, (files / "key").read_bytes()), "x-request-id": f"r-{number}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"by hand {number}"}], "max_tokens": 4}
    url = f"https://127.0.0.1:{made.links['eu', 'us'].port}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers, ssl=context, server_hostname=f"us.{DOMAIN}") as answer,
    ):
        return answer.status, await answer.text()


async def test_a_full_peer_refuses_before_an_engine_sees_it_but_what_may_go_nowhere_else(made: World) -> None:
    us = made.regions["us"]
    async with load(us, 8) as seen:
        await until_more(us, 8)
        answers = [await as_eu(made, number, bound=False) for number in range(10)]
        bound = [await as_eu(made, number, bound=True) for number in range(3)]
    refused = [text for status, text in answers if status == 429]
    assert any("us has no room" in text for text in refused)
    assert {status for status, _ in answers} <= {200, 429}
    assert {status for status, _ in bound} == {200}
    assert await us.picker.metric("epp_region_refused_total", reason="full") >= len(refused)
    assert await us.picker.metric("epp_region_refused_total", reason="replayed") == 0
    assert {each.status for each in seen} == {200}


async def under_fault(made: World, *, fault: Any, healing: Any) -> list[Asked]:
    """Fill a region so that it forwards, let something fail, heal it; what its clients saw."""
    eu, us = made.regions.values()
    async with load(eu, 6) as seen:
        await until_more(us)
        fault()
        failed_s = time.monotonic()
        await until(lambda: sum(each.began_s > failed_s + BOUND_S for each in seen) >= 20)
        healing()
        await made.meet()
        await until_more(us)
    late = [each for each in seen if each.began_s > failed_s + BOUND_S]
    assert {each.status for each in late} == {200}
    return seen


async def test_a_region_that_is_cut_off_costs_no_new_request_and_comes_back(made: World) -> None:
    await under_fault(made, fault=lambda: made.split("us"), healing=lambda: made.heal("us"))


async def test_an_engine_here_that_asked_for_peace_serves_where_no_peer_does(made: World) -> None:
    """The peer's Envoy is gone and its picker is not, so that summaries still come."""
    eu, link = made.regions["eu"], made.links["eu", "us"]
    paused = {"endpoint": eu.replicas[0].address, "reason": "retry-after"}
    eu.replicas[0].refusal = (429, 8)
    assert (await eu.chat())[0] == 200, "the peer has room"
    eu.replicas[0].refusal = None
    await eu.picker.until_metric("epp_endpoint_unavailable", lambda value: value > 0, **paused)
    link.hold()
    try:
        await asyncio.sleep(BOUND_S)
        assert {(await eu.chat())[0] for _ in range(10)} == {200}
    finally:
        link.cut()
        link.heal()
    await eu.picker.until_metric("epp_endpoint_unavailable", lambda value: value == 0, **paused)


async def test_a_peer_whose_picker_hangs_costs_no_new_request(made: World) -> None:
    us = made.regions["us"]
    await under_fault(
        made,
        fault=lambda: us.picker.signal(signal.SIGSTOP),
        healing=lambda: us.picker.signal(signal.SIGCONT),
    )


async def test_a_peer_whose_summaries_are_lost_is_left_alone_until_they_are_back(made: World) -> None:
    eu, us = made.regions.values()
    link = made.links["us", "nats"]
    link.hold()
    await eu.picker.until_metric("epp_region_summary_age_seconds", lambda age: age > 3.0, region="us")
    had = engine(us)
    async with load(eu, 6) as seen:
        await until(lambda: len(seen) >= 20)
        assert engine(us) == had
        link.cut()
        link.heal()
        await until_more(us)
    assert {each.status for each in seen} == {200}


async def test_a_peer_without_a_picker_takes_nothing_and_what_is_bound_to_it_fails_closed(
    made: World,
) -> None:
    eu, us = made.regions.values()
    await us.picker.kill()
    try:
        had = engine(eu), engine(us)
        assert (await eu.chat(headers={BOUND: "us"}))[0] == 503
        assert (engine(eu), engine(us)) == had
        assert (await eu.chat())[0] == 200
    finally:
        await us.picker.start()
