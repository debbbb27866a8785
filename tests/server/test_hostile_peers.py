"""Peers that break the rules on a real socket: nothing of them stays behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.rpc.http2.status import Status
from tests.kit.conversation import (
    DUPLEX,
    request_body,
    request_headers,
    response_body,
    response_headers,
    with_modes,
)
from tests.kit.http2 import message
from tests.kit.rawpeer import Serving
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    made = await Serving.start(tmp_path)
    yield made
    await made.stop()


@pytest.mark.parametrize("decided", [True, False], ids=["decided before", "not decided"])
async def test_what_comes_in_one_read_with_its_reset_counts_and_is_no_fault_of_ours(
    serving: Serving, decided: bool
) -> None:
    """The stream is over before the first message is looked at; what the answer told is not lost."""
    outcomes: list[str] = []
    serving.app.director.outcomes.on_outcome["test"] = lambda outcome: outcomes.append(outcome.cause)
    peer = await serving.connect()
    peer.open(1)
    chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    peer.say(1, with_modes(request_headers(), DUPLEX), request_body(chat, end=True))
    if decided:
        await peer.round_trip()
        peer.say(1, response_headers(), response_body(b"{}", end=True))
    peer.reset(1)
    await peer.round_trip()
    assert serving.app.scheduler.in_flight == 0
    assert outcomes == (["completed"] if decided else [])
    assert bool(serving.app.director.recent.find("last")) is decided, "nobody waits for a pick any more"
    assert await serving.metric('epp_faults_total{part="stream"}') == 0
    assert await serving.metric('llm_d_epp_extproc_streams_total{code="Canceled"}') == 1


@pytest.mark.parametrize("given_up", [True, False], ids=["given up in the same read", "not given up"])
async def test_a_message_that_cannot_be_read_ends_its_call_and_what_is_behind_it_is_nobodys(
    serving: Serving, given_up: bool
) -> None:
    peer = await serving.connect()
    peer.open(1)
    good = message(with_modes(request_headers(), DUPLEX).SerializeToString())
    bad = message(b"compressed", flag=1)
    chat = request_body(b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}', end=True)
    peer.pour(1, good + bad + message(chat.SerializeToString()))
    if given_up:
        peer.reset(1)
    await peer.round_trip()
    told = peer.told[1].status
    assert told is not None
    assert told[0] is Status.INTERNAL
    assert not serving.app.director.recent.find("last"), "it was not decided"
    assert await serving.metric("llm_d_epp_extproc_streams_inflight") == 0
    assert await serving.metric('llm_d_epp_extproc_streams_total{code="Internal"}') == 1
    assert await serving.metric('epp_faults_total{part="stream"}') == 0


@pytest.mark.parametrize("end", ["reset", "hung up", "broken"])
async def test_a_pick_that_waits_for_a_window_when_its_stream_goes_holds_no_lease(
    tmp_path: Path, end: str
) -> None:
    """Its stream was to end with it, and the proxy passes nothing on before it has all of it."""
    serving = await Serving.start(tmp_path, observe={"mode": "none"})
    peer = await serving.connect(initial_window_size=100)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 2000 + b'"}]}'
    peer.open(1)
    peer.say(1, with_modes(request_headers(), DUPLEX, DUPLEX), request_body(body, end=True))
    await peer.round_trip()
    assert serving.app.scheduler.in_flight == 1
    if end == "reset":
        peer.reset(1)
        await peer.round_trip()
    elif end == "hung up":
        await peer.close()
    else:
        peer.write(bytes(100))
    await until(lambda: not serving.app.scheduler.in_flight)
    assert not serving.app.director.leases._estimated
    await serving.stop()
