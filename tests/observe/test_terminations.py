"""Why requests ended, as a real Envoy tells it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from epp.request.access_log import Report, Termination
from epp.types import Endpoint
from tests.kit.envoy import ScriptedUpstream
from tests.observe import answers
from tests.observe.conftest import running

if TYPE_CHECKING:
    from tests.observe.conftest import Rig

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]


async def never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(answers.head() + answers.chunk(answers.token("a")))
    await writer.drain()
    await asyncio.Event().wait()


async def last_report(rig: Rig) -> Report:
    return await rig.told.report(rig.picker.ids[-1])


async def test_client_leaves_after_the_first_token(rig: Rig) -> None:
    rig.plays(never_ends)
    async with rig.client() as client:
        await client.read_head()
        await client.reader.readuntil(b"\n\n")
        client.leave()
    report = await last_report(rig)
    assert (report.cause, report.status, report.streamed) == (Termination.CLIENT_GONE, 200, True)
    assert 0 < report.ttft_ms <= report.e2e_ms
    assert report.chunks is None
    await rig.told.until(lambda: rig.picker.ids[-1] in rig.told.first_tokens)


async def test_client_that_hangs_up_at_the_end_mark_has_all_it_wanted(rig: Rig) -> None:
    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(answers.chunk(answers.usage() + answers.DONE))
        await writer.drain()
        await asyncio.Event().wait()

    rig.plays(play)
    async with rig.client() as client:
        await client.read_head()
        await client.reader.readuntil(b"[DONE]\n\n")
        client.leave()
    report = await last_report(rig)
    assert report.cause is Termination.COMPLETED
    assert report.usage.completion_tokens == 5


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_upstream_breaks_off_mid_stream(rig: Rig, how: str) -> None:
    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        await writer.drain()
        await asyncio.sleep(0.02)
        if how == "reset":
            writer.transport.abort()
        else:
            writer.close()

    rig.plays(play)
    _, body, report = await rig.exchange()
    assert answers.token("a") in body
    assert (report.cause, report.status, report.chunks) == (Termination.UPSTREAM_RESET, 200, None)
    assert not math.isnan(report.ttft_ms)


async def test_upstream_breaks_off_before_the_answer(rig: Rig) -> None:
    async def play(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    rig.plays(play)
    client, _, report = await rig.exchange()
    assert client.status == report.status == 503
    assert (report.cause, report.served) == (Termination.UPSTREAM_RESET, rig.upstream.endpoint.address)


async def test_no_pick_is_told_without_an_id(rig: Rig) -> None:
    rig.plays(answers.whole(b"{}"))
    rig.picker.destination, before = "", len(rig.told.reports)
    try:
        async with rig.client() as client:
            await client.read_head()
            await client.body()
    finally:
        rig.picker.destination = rig.upstream.endpoint.address
    await rig.told.until(lambda: len(rig.told.reports) > before)
    assert [report.decision_id for report in rig.told.reports[before:]] == [""]
    assert client.header("x-epp-decision-id") == ""


async def test_retry_is_served_by_the_second_endpoint() -> None:
    async with (
        ScriptedUpstream(
            lambda _, writer: answers.stream(answers.token("b"), answers.DONE)(writer)
        ) as second,
        running(endpoints=[Endpoint("127.0.0.1:1"), second.endpoint]) as rig,
    ):
        rig.picker.destination = f"127.0.0.1:1,{second.endpoint.address}"
        client, _, report = await rig.exchange()
        assert (client.status, report.cause) == (200, Termination.RETRIED_ELSEWHERE)
        assert (report.picked[0], report.served, report.attempts) == (
            "127.0.0.1:1",
            second.endpoint.address,
            2,
        )
        # Nobody there at all.
        rig.picker.destination = "127.0.0.1:1"
        await second.__aexit__()
        client, _, report = await rig.exchange()
        assert (client.status, report.cause) == (503, Termination.UNREACHABLE)
        assert report.attempts > 1


async def test_silent_upstream_is_timed_out() -> None:
    async with running(stream_idle_timeout_s=0.2) as rig:
        rig.plays(never_ends)
        _, _, report = await rig.exchange()
        assert (report.cause, report.status) == (Termination.TIMED_OUT, 200)
