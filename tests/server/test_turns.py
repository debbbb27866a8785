"""Whose turn it is, and what peers have used up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from epp.rpc import fair_queue
from epp.rpc.fair_queue import Client, Clients, FairQueue, address_key
from epp.rpc.http2 import frames
from epp.rpc.http2.limits import Rate
from tests.kit.rawpeer import Serving
from tests.server.test_connections import answered

if TYPE_CHECKING:
    from pathlib import Path


class Waiting(FairQueue):
    """Work that tells its name when it has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def name(self, client: Client, name: str) -> None:
        """Queue work of a peer."""
        self.add(client, partial(self.found.append, name))

    def names(self, costs_s: dict[str, float], count: int) -> str:
        """Who has the next turns, where each is queued again after it and costs its time."""
        for _ in range(count):
            taken = self.take()
            assert taken is not None
            client, turn = taken
            turn()
            client.credit_s -= costs_s[self.found[-1]]
            self.add(client, turn)
        return "".join(self.found)


def test_peers_get_the_same_time_however_many_connections_they_have() -> None:
    waiting, many, one = Waiting(), Client(0.0), Client(0.0)
    for name in "abc":
        waiting.name(many, name)
    waiting.name(one, "x")
    found = waiting.names(dict.fromkeys("abcx", 0.002), 60)
    assert found.count("x") == 30
    assert {found.count(name) for name in "abc"} == {10}


def test_a_peer_whose_turns_take_longer_has_fewer() -> None:
    waiting = Waiting()
    waiting.name(Client(0.0), "l")
    waiting.name(Client(0.0), "s")
    found = waiting.names({"l": 0.02, "s": 0.002}, 110)
    assert 9 <= found.count("l") <= 11


def test_a_budget_outlives_its_connections() -> None:
    clients = Clients()
    client = clients.find("a", 0.0)
    client.units = -1000
    assert clients.find("a", 0.001) is client
    assert client.is_over_budget(0.001)
    assert not client.is_over_budget(10.0)


def test_the_number_of_peers_is_bounded_and_debts_are_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "_MAX_PEERS", 3)
    clients = Clients()
    debtor, present = clients.find("debtor", 0.0), clients.find("present", 0.0)
    debtor.units = -1000
    present.connections["its"] = None
    for number in range(10):
        clients.find(number, 0.0)
    assert clients.find("debtor", 0.0) is debtor
    assert clients.find("present", 0.0) is present
    assert len(clients.by_connections()) == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:2", 1, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 1), True),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2", 1, 0, 2), True),
        ("", "", True),
    ],
)
def test_a_peer_is_an_address_or_a_slash_64(one: Any, other: Any, same: bool) -> None:
    assert (address_key(one) == address_key(other)) is same


async def test_a_flood_is_ended_and_others_of_its_address_are_served_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that is busy with other things reads no more than this a second either.
    monkeypatch.setattr(fair_queue, "_PEER", Rate(burst=6_000, per_s=6_000))
    serving = await Serving.start(tmp_path)
    quiet = await serving.connect()
    number = 1
    for _ in range(3):  # the budget outlives the connection
        attack = await serving.connect()
        attack.write(frames.window_update(0, 1) * 300_000)
        while not attack.ended():
            assert await answered(quiet, number)
            number += 2
            await asyncio.sleep(0.02)
        await attack.close()
    late = await serving.connect()
    assert await answered(late)
    assert not quiet.ended()
    assert await serving.metric('epp_connections_closed_total{listener="grpc",reason="flood"}') > 0
    assert await serving.metric("epp_connections_throttled_seconds_total") > 0
    await serving.stop()
