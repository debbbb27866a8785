"""Links of pickers over a bus, in virtual time: who tells, and how what was missed is made good."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from epp.prefix_cache.index import PrefixIndex
from epp.regions.link import RegionLink
from epp.regions.remote import RemoteRegions, peer_endpoint
from epp.regions.summary import LEAST_S
from epp.signals.datastore import Datastore
from epp.types import Endpoint
from tests.kit.clock import ManualClock
from tests.kit.records import prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable


PEER = "127.0.0.1:9100"


class Wire:
    """What joins the buses; a subject is lost while it begins with ``lost``."""

    def __init__(self) -> None:
        self.takers: dict[str, list[tuple[object, Callable[[bytes], bytes | None]]]] = defaultdict(list)
        self.lost: str | None = None
        self.carried = 0

    def send(self, sender: object, subject: str, data: bytes) -> list[bytes]:
        if self.lost is not None and subject.startswith(self.lost):
            return []
        self.carried += len(data)
        answers = [take(data) for owner, take in self.takers[subject] if owner is not sender]
        return [answer for answer in answers if answer is not None]


class Bus:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def publish(self, subject: str, data: bytes) -> None:
        self._wire.send(self, subject, data)

    def listen(self, subject: str, take: Callable[[bytes], bytes | None]) -> None:
        self._wire.takers[subject].append((self, take))

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:  # noqa: ARG002
        return next(iter(self._wire.send(self, subject, data)), b"")


class Picker:
    """One picker of a region with one engine."""

    def __init__(self, wire: Wire, clock: ManualClock, region: str, peer: str, origin: str) -> None:
        self.datastore = Datastore(PrefixIndex())
        self.tells = True
        self.engine = f"10.0.0.{len(region)}:8000"
        self.datastore.apply([Endpoint(self.engine, region=region), peer_endpoint(peer, PEER)], 0.0)
        self.remote = RemoteRegions(self.datastore, region=region, key_id="k", peers={peer: PEER})
        self.link = RegionLink(
            self.datastore,
            self.remote,
            Bus(wire),
            clock,
            subject="epp.p",
            peers=(peer,),
            region=region,
            origin=origin,
            key_id="k",
            tells=lambda: self.tells,
        )

    def hold(self, seed: int) -> None:
        """Let its engine hold a prompt."""
        slot = self.datastore.slot_of(self.engine)
        assert slot is not None
        self.datastore.index.insert(slot, prompt_of(seed))


class Pair:
    """A picker in one region, two in the other."""

    def __init__(self) -> None:
        self.wire, self.clock = Wire(), ManualClock()
        self.us = Picker(self.wire, self.clock, "us", "eu", "us-1")
        self.eu = [Picker(self.wire, self.clock, "eu", "us", f"eu-{number}") for number in (1, 2)]
        self.eu[1].tells = False

    def ticks(self, seconds: float) -> None:
        for _ in range(round(seconds / LEAST_S)):
            for picker in (self.us, *self.eu):
                for region in picker.link.tick():
                    asyncio.run(picker.link.ask(region))
            self.clock.advance(LEAST_S)

    def known(self, seed: int) -> bool:
        """Whether ``us`` believes that ``eu`` holds most of a prompt."""
        slot, prompt = self.us.datastore.slot_of(PEER), prompt_of(seed)
        cached = self.us.remote.match(prompt).cached_tokens(np.array([slot], np.intp))
        return float(cached[0]) > prompt.prompt_tokens / 2


def test_one_picker_of_a_region_tells_and_another_goes_on() -> None:
    pair = Pair()
    for picker in pair.eu:
        picker.hold(1)
    pair.ticks(2.0)
    assert pair.known(1)
    assert not pair.known(2)
    assert [picker.link.bytes["sent",] > 0 for picker in (pair.us, *pair.eu)] == [True, True, False]
    pair.eu[0].tells, pair.eu[1].tells = False, True
    pair.eu[1].hold(2)
    pair.ticks(3.0)
    assert pair.known(1)
    assert pair.known(2)
    assert pair.us.link.age_s("eu") < 1.5


def test_a_split_ends_with_what_was_missed_once_and_no_storm() -> None:
    pair = Pair()
    pair.eu[0].hold(1)
    pair.ticks(2.0)
    pair.wire.lost = "epp."
    pair.eu[0].hold(2)
    pair.ticks(10.0)
    assert pair.us.link.age_s("eu") > 9.0
    assert not pair.known(2)
    pair.wire.lost, before = None, pair.wire.carried
    pair.ticks(3.0)
    assert pair.known(2)
    assert pair.us.link.age_s("eu") < 1.5
    # Each of the three pickers asks for one whole sketch, which compresses well while little is held.
    assert pair.wire.carried - before < 20_000
