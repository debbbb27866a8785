"""Why requests ended, as a real Envoy tells it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.request.access_log import Report, Termination
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


async def test_silent_upstream_is_timed_out() -> None:
    async with running(stream_idle_timeout_s=5.0) as rig:
        rig.plays(never_ends)
        _, _, report = await rig.exchange()
        assert (report.cause, report.status) == (Termination.TIMED_OUT, 200)
