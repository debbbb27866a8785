from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from epp.lab.sim.fault import Fault
from epp.lab.sim.http import SimReplica
from tests.kit.replicas import CHAT, SLOW, chat_body, post, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def replica() -> AsyncIterator[SimReplica]:
    async with SimReplica(quick_config()) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def fault(http: aiohttp.ClientSession, replica: SimReplica, **fields: Any) -> int:
    async with http.post(f"{replica.url}/sim/fault", json=fields) as response:
        return response.status


async def test_errors_at_a_rate(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    assert await fault(http, replica, error_rate=0.5, error_status=500) == 200
    statuses = [(await post(http, replica, chat_body("hi")))[0] for _ in range(60)]
    assert 10 < statuses.count(500) < 50
    await fault(http, replica)
    assert (await post(http, replica, chat_body("hi")))[0] == 200


async def test_a_hung_replica_answers_nothing_until_healed(
    replica: SimReplica, http: aiohttp.ClientSession
) -> None:
    await fault(http, replica, hang=True)
    health = asyncio.create_task(http.get(f"{replica.url}/health"))
    chat = asyncio.create_task(post(http, replica, chat_body("hi")))
    done, _ = await asyncio.wait([health, chat], timeout=0.1)
    assert not done
    await fault(http, replica)
    assert (await chat)[0] == 200
    assert (await health).status == 200


async def test_a_reset_in_the_middle_of_a_stream(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    await fault(http, replica, reset_after_tokens=3)
    async with http.post(replica.url + CHAT, json=chat_body("hi", stream=True)) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await until(lambda: replica.snapshot().counters.done + replica.snapshot().counters.cancelled == 1)


async def test_a_slow_replica_is_slow(replica: SimReplica, http: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    await fault(http, replica, slow_factor=100.0)
    start_s = loop.time()
    await post(http, replica, chat_body("hi", max_tokens=2))
    assert loop.time() - start_s >= 0.1


async def test_death_resets_streams_and_revival_is_cold_on_the_same_port(http: aiohttp.ClientSession) -> None:
    async with SimReplica(quick_config(engine_class=SLOW)) as replica:
        address, started = replica.address, replica._start_time_s
        body = chat_body("hi " * 500, stream=True, max_tokens=5000, ignore_eos=True)
        async with http.post(replica.url + CHAT, json=body) as response:
            await response.content.readuntil(b"\n\n")
            assert await fault(http, replica, die=True, revive_after_s=0.05) == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        await until(lambda: not replica.alive)
        await until(lambda: replica.alive)
        assert replica.address == address
        assert replica._start_time_s > started
        _, answer = await post(http, replica, chat_body("hi " * 500, max_tokens=1))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_death_that_another_replaces_is_one_death(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SimReplica(quick_config()) as replica:
        starts: list[None] = []
        start = replica.start

        async def counted() -> None:
            starts.append(None)
            await start()

        monkeypatch.setattr(replica, "start", counted)
        tasks = []
        for _ in range(2):
            replica.set_fault(Fault(die=True, revive_after_s=0.05))
            tasks.append(replica._revival)
        assert None not in tasks
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        assert (len(starts), replica.alive) == (1, True)
        replica.set_fault(Fault(die=True))
        dying = replica._revival
        replica.set_fault(Fault())
        assert dying is not None
        await asyncio.gather(dying, return_exceptions=True)
        assert replica.alive, "the fault is replaced whole"


async def test_a_dead_replica_refuses_connections_and_can_be_started_again(
    http: aiohttp.ClientSession,
) -> None:
    async with SimReplica(quick_config()) as replica:
        await replica.kill()
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(http, replica, chat_body("hi"))
        await replica.start()
        assert (await post(http, replica, chat_body("hi")))[0] == 200


async def test_stopping_does_not_wait_for_a_revival(http: aiohttp.ClientSession) -> None:
    async with SimReplica(quick_config()) as replica:
        await fault(http, replica, die=True, revive_after_s=3600.0)
        await until(lambda: not replica.alive)
        with pytest.raises(RuntimeError, match="dead"):
            replica.set_fault(Fault())
    assert not replica.alive


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"hangs": true}',
        b'{"error_rate": 2}',
        b'{"slow_factor": 0}',
        b'{"slow_factor": 1e9}',
        b'{"x\xff": 1}',
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(
    replica: SimReplica, http: aiohttp.ClientSession, body: bytes
) -> None:
    async with http.post(f"{replica.url}/sim/fault", data=body) as response:
        assert response.status == 400
    assert replica.fault == Fault()
