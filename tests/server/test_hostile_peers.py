"""Peers that break the rules on a real socket: nothing of them stays behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.http2.status import Status
from tests.kit.http2 import message
from tests.kit.rawpeer import RawPeer, Serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WATCH = b"/grpc.health.v1.Health/Watch"


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    made = await Serving.start(tmp_path)
    yield made
    await made.stop()


async def test_a_watch_that_ended_with_its_first_message_is_not_begun_by_its_second(serving: Serving) -> None:
    """Nobody would ever end it: its call is over."""
    peer = await RawPeer.connect(serving.address)
    tasks = len(asyncio.all_tasks())
    peer.open(1, WATCH)
    peer.pour(1, message(b"\xff") + message(b""))
    await peer.round_trip()
    told = peer.told[1].status
    assert told is not None
    assert told[0] is Status.INTERNAL
    assert not serving.app._grpc._watchers
    assert len(asyncio.all_tasks()) == tasks
    await peer.close()
