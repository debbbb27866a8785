"""What is reported of answers that end well: usage, first token, nothing changed. A real Envoy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.apis.usage import NO_USAGE, Usage
from epp.request.access_log import Termination
from tests.kit.envoy import require_version
from tests.observe import answers

if TYPE_CHECKING:
    from tests.observe.conftest import Rig

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

EXPECTED = Usage(1200, 5, 1024)


def dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out, body = out + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return out


@pytest.mark.parametrize("cut", [5, 90])
async def test_usage_event_split_over_chunks(rig: Rig, cut: int) -> None:
    last = answers.usage() + answers.DONE

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        for piece in (last[:cut], last[cut:]):
            await asyncio.sleep(0.01)  # so that Envoy reads it by itself
            writer.write(answers.chunk(piece))
        writer.write(answers.chunk(b""))

    rig.plays(play)
    client, body, report = await rig.exchange()
    assert dechunked(body) == answers.token("a") + last
    assert (client.status, report.status, report.cause) == (200, 200, Termination.COMPLETED)
    assert report.usage == EXPECTED
    assert report.streamed is True
    assert report.chunks is not None
    assert report.served == report.picked[0] == rig.upstream.endpoint.address
    assert report.attempts == 1
    assert report.response_bytes == len(dechunked(body))
    assert 0 < report.headers_ms <= report.ttft_ms <= report.e2e_ms


async def test_first_token_is_told_while_the_answer_runs(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def play(writer: asyncio.StreamWriter) -> None:
        # A comment keeps the connection alive and is no token.
        writer.write(answers.head() + answers.chunk(b": wait\n\n"))
        await asyncio.sleep(0.05)
        assert rig.picker.ids[-1] not in rig.told.first_tokens
        writer.write(answers.chunk(answers.token("a")))
        await go_on.wait()
        writer.write(answers.chunk(answers.DONE) + answers.chunk(b""))

    rig.plays(play)
    async with rig.client() as client:
        await client.read_head()
        await rig.told.until(lambda: rig.picker.ids[-1] in rig.told.first_tokens)
        go_on.set()
        await client.body()
    report = await rig.told.report(rig.picker.ids[-1])
    assert report.ttft_ms >= 50
    assert rig.told.first_tokens.count(rig.picker.ids[-1]) == 1


async def test_answers_of_other_kinds_are_left_alone(rig: Rig) -> None:
    sound = bytes(range(256)) * 512
    rig.plays(answers.whole(sound, "content-type: audio/wav\r\n"))
    _, body, report = await rig.exchange()
    assert dechunked(body) == sound
    assert (report.usage, report.cause) == (NO_USAGE, Termination.COMPLETED)


async def test_forged_ids_are_not_believed(rig: Rig) -> None:
    rig.plays(
        answers.stream(answers.token("a"), answers.DONE, headers=answers.STREAM + "x-epp-decision-id: no\r\n")
    )
    before = len(rig.told.reports)
    client, _, report = await rig.exchange("x-request-id: decision-1\r\nX-EPP-Decision-Id: decision-1\r\n")
    assert client.header("x-epp-decision-id") == rig.picker.ids[-1]
    assert [r.decision_id for r in rig.told.reports[before:]] == [rig.picker.ids[-1]]
    await rig.told.until(lambda: rig.told.first_tokens[-1:] == rig.picker.ids[-1:])
    assert "decision-1" not in rig.upstream.heads[-1].lower().replace("x-request-id: decision-1", "")
    assert report.usage == NO_USAGE


async def test_connection_times(rig: Rig) -> None:
    await require_version(1, 37, "connection times in the access log")
    rig.plays(answers.whole(b"{}"))
    reports = [(await rig.exchange())[2] for _ in range(4)]
    assert any(report.connected_anew is False for report in reports)
    for report in reports:
        assert report.connect_ms >= 0
        assert report.received_ms <= report.sent_ms <= report.headers_ms <= report.e2e_ms


async def test_script_never_failed(rig: Rig) -> None:
    """Last of the file: nothing above made Envoy or the filter complain."""
    assert set((await rig.envoy.stats(r"lua\.observe\.errors")).values()) == {0}
    assert "script log" not in rig.envoy.log_file.read_text()
    assert (rig.picker.als.malformed, rig.picker.als.failed) == (0, 0)
    assert (rig.picker.first_tokens.malformed, rig.picker.first_tokens.failed) == (0, 0)
