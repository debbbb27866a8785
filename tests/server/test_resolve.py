from __future__ import annotations

import asyncio
from typing import Any

import pytest

from epp.feeds.resolve import Resolver
from tests.kit.logs import own_lines


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the name service says; a name without an entry does not resolve, one of "slow." hangs."""
    table: dict[str, list[str]] = {}

    async def getaddrinfo(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        if host.startswith("slow."):
            table.setdefault("asked", []).append(host)
            await asyncio.get_running_loop().create_future()
        if host not in table:
            raise OSError("no such name")
        return [(0, 0, 0, "", (ip, port)) for ip in table[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return table


async def test_a_name_is_answered_by_the_address_that_envoy_knows(answers: dict[str, list[str]]) -> None:
    answers["gpu.example"] = ["fd00::1", "10.0.0.9", "10.0.0.2"]
    resolver = Resolver()
    resolver.set_pool(["gpu.example:8000", "10.1.1.1:80", "[fd00::2]:80"])
    assert resolver.known_as("gpu.example:8000") == "gpu.example:8000", "until it is resolved"
    await resolver.resolve("gpu.example:8000")
    assert resolver.known_as("gpu.example:8000") == "10.0.0.2:8000"
    assert resolver.endpoint_of("10.0.0.2:8000") == "gpu.example:8000"
    assert resolver.known_as("10.1.1.1:80") == "10.1.1.1:80"
    assert resolver.endpoint_of("10.1.1.1:80") == "10.1.1.1:80"


async def test_a_failure_keeps_the_last_good_answer_and_is_told_once(
    answers: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    answers["gpu.example"] = ["fd00:0::1"]
    resolver = Resolver()
    resolver.set_pool(["gpu.example:8000"])
    await resolver.resolve("gpu.example:8000")
    del answers["gpu.example"]
    await resolver.resolve("gpu.example:8000")
    await resolver.resolve("gpu.example:8000")
    assert resolver.known_as("gpu.example:8000") == "[fd00::1]:8000"
    assert "".join(own_lines(caplog)).count("cannot resolve") == 1
    resolver.set_pool([])
    assert resolver.known_as("gpu.example:8000") == "gpu.example:8000"
    assert not resolver.renames


async def test_no_name_waits_for_another_and_none_is_asked_twice_at_once(
    answers: dict[str, list[str]],
) -> None:
    answers["gpu.example"] = ["10.0.0.2"]
    resolver = Resolver()
    task = asyncio.create_task(resolver.run())
    for pool in (
        ["slow.example:1"],
        ["slow.example:1", "gpu.example:2"],
        ["slow.example:1", "gpu.example:2"],
    ):
        resolver.set_pool(pool)
        for _ in range(10):
            await asyncio.sleep(0)
    assert resolver.known_as("gpu.example:2") == "10.0.0.2:2"
    assert answers["asked"] == ["slow.example"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_envoy_knows_the_address_of_ranks_and_means_the_one_picked(
    answers: dict[str, list[str]],
) -> None:
    answers["gpu.example"] = ["10.0.0.9"]
    resolver = Resolver()
    resolver.set_pool(["10.0.0.1:80@0", "10.0.0.1:80@1", "gpu.example:80@1", "10.0.0.2:80"])
    await resolver.resolve("gpu.example:80")
    assert resolver.known_as("10.0.0.1:80@1") == resolver.resolved("10.0.0.1:80@1") == "10.0.0.1:80"
    assert resolver.endpoint_of("10.0.0.1:80", "10.0.0.1:80@1") == "10.0.0.1:80@1"
    assert resolver.endpoint_of("10.0.0.9:80", "10.0.0.1:80@1") == "gpu.example:80@1"
    assert resolver.endpoint_of("10.0.0.2:80", "10.0.0.1:80@1") == "10.0.0.2:80"
