"""The attacks by name that come over NATS: of who has no secret, of who plays back, and of a peer that has it."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import TYPE_CHECKING, Any

import msgspec
import nats

from epp.cluster.messages import FileContent, Group, Lead, Message, encode
from epp.cluster.seal import Seal, key_of
from epp.prefix_cache.blocks import BlockHasher
from epp_lab.bench.processes import pool_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nats.aio.msg import Msg

#: Of the pickers of `epp_lab.bench.processes`.
SECRET = b"a secret of benchmarks"
GROUP = Group("default", "gorgo-ms", BlockHasher(SECRET).key_id)
ENDPOINT = pool_of(1)[0].address
SUBJECT = "epp.1.default"
_JOIN_S, _AT_ONCE = 1.0, 50


@dataclass
class Peer:
    """A process on the bus.

    Attributes:
        name: of it.
        others: names of the pickers.
        heard: what they have said.
    """

    name: str = field(default_factory=lambda: f"x-{random.randbytes(4).hex()}")
    others: set[str] = field(default_factory=set)
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    def say(self, **content: Any) -> tuple[str, bytes]:
        """A message to all."""
        return f"{SUBJECT}.all", encode(Message(GROUP, self.name, **content))

    def to_pages(self, content: bytes) -> Iterator[tuple[str, bytes]]:
        """The same to the live page of each picker."""
        for other in self.others:
            yield f"{SUBJECT}.answers.{other}", content


def facts(*each: tuple[Any, ...]) -> Callable[[Peer], Iterable[tuple[str, bytes]]]:
    """Messages of facts, which nobody could make by mistake, and of what is asked with them."""
    told: Any = [(ENDPOINT, 0.0, *fact) for fact in each]
    return lambda peer: (
        peer.say(sequence=number, **{name: told}) for number in count() for name in ("facts", "wants")
    )


def no_chains(peer: Peer) -> Iterator[tuple[str, bytes]]:
    """Facts of hashes that belong to several prompts at once."""
    draw = random.Random(1)
    for number in count():
        hashes = (draw.randrange(16).to_bytes(8, "little") for _ in range(draw.randrange(12)))
        told: Any = [(ENDPOINT, 0.0, b"", 0, b"".join(hashes), 64.0)]
        yield peer.say(sequence=number, facts=told)


def terms(peer: Peer) -> Iterator[tuple[str, bytes]]:
    """The highest term that the format has."""
    lead = Lead(2**64 - 1, peer.name, 0.0)
    told = FileContent(GROUP, lead, "weights", zlib.compress(b"rtt_weight: 1000"))
    for number in count():
        yield peer.say(sequence=number, lead=lead)
        yield f"{SUBJECT}.file", msgspec.msgpack.encode(told)


def strangers(_: Peer) -> Iterator[tuple[str, bytes]]:
    """A new name for each message."""
    return (Peer().say(sequence=0) for _ in count())


def pages(content: Callable[[], bytes]) -> Callable[[Peer], Iterable[tuple[str, bytes]]]:
    """The same to all pages."""
    return lambda peer: (each for made in cycle([content()]) for each in peer.to_pages(made))


def bomb() -> bytes:
    """950 MB of zeros: a block that stands for itself, again and again."""
    packer, zeros = zlib.compressobj(9), bytes(1_000_000)
    first = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + 949 * (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH))


@dataclass(frozen=True)
class PeerAttack:
    """One attack.

    Attributes:
        what: it is.
        messages: subjects and contents, without end.
        signed: by who has the secret, and has answered the challenge.
    """

    what: str
    messages: Callable[[Peer], Iterable[tuple[str, bytes]]]
    signed: bool = True


def asks(peer: Peer) -> Iterator[tuple[str, bytes]]:
    """All that is known."""
    return (peer.say(sequence=-1, ask=-1) for _ in count())


# fmt: off
PEER_ATTACKS = {
    "peer-unsigned": PeerAttack("asks for all that is known, without a signature", asks, signed=False),
    "peer-unsigned-term": PeerAttack("terms of 2^64-1 without a signature", terms, signed=False),
    "peer-replayed": PeerAttack(
        "all that pickers said, again and again", lambda peer: cycle(peer.heard), signed=False),
    "peer-strangers": PeerAttack("a new name for each message", strangers),
    "peer-asks": PeerAttack("asks for all that is known", asks),
    "peer-term": PeerAttack("terms of 2^64-1", terms),
    "peer-no-hashes": PeerAttack("facts of bytes that are no hashes", facts((b"short", 0, b"odd", 64.0))),
    "peer-no-chains": PeerAttack("hashes that belong to several prompts", no_chains),
    "peer-block-tokens": PeerAttack(
        "blocks of 1e-300 tokens", facts((b"", 0, random.Random(1).randbytes(8192), 1e-300))),
    "peer-questions": PeerAttack(
        "questions of live pages", lambda _: cycle([(f"{SUBJECT}.page", b""), (f"{SUBJECT}.page", b"x")])),
    "peer-bomb": PeerAttack("950 MB of zeros to the live page, by zlib", pages(bomb)),
    "peer-frame": PeerAttack("frames without keys to the live page", pages(lambda: zlib.compress(b"{}"))),
}
# fmt: on


async def attack(address: str, order: dict[str, Any]) -> Counter[str]:
    """Send the messages of an attack for a while; how many were ``made``."""
    chosen, tally, peer = PEER_ATTACKS[order["name"]], Counter(made=0, ended=0), Peer()
    client = await nats.connect(f"nats://{address}")
    sending = set[asyncio.Task[None]]()

    def greet(to: str, greeting: bytes) -> None:
        subject = f"{SUBJECT}.hello.{to}"
        task = asyncio.ensure_future(client.publish(subject, seal.sign(subject, greeting)))
        sending.add(task)
        task.add_done_callback(sending.discard)

    seal = Seal([key_of(SECRET, b"epp cluster")], peer.name, greet)

    async def greeted(message: Msg) -> None:
        seal.greeted(message.subject, message.data)

    async def hear(message: Msg) -> None:
        if message.data.startswith(b"epp\x02"):  # not of the other attacker
            peer.heard.append((message.subject, message.data))
            peer.others.add(msgspec.msgpack.decode(message.data[20:])[0])

    await client.subscribe(f"{SUBJECT}.hello.{peer.name}", cb=greeted)
    listening = await client.subscribe(f"{SUBJECT}.all", cb=hear)
    while len(peer.others) < 2:
        await asyncio.sleep(0.05)
    await listening.unsubscribe()
    for _ in range(2 if chosen.signed else 0):
        subject, content = peer.say(sequence=0)
        await client.publish(subject, seal.sign(subject, content))
        await asyncio.sleep(_JOIN_S / 2)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + order["seconds"]
    for subject, content in chosen.messages(peer):
        await client.publish(subject, seal.sign(subject, content) if chosen.signed else content)
        tally["made"] += 1
        if tally["made"] % _AT_ONCE == 0:
            await client.flush()
        if loop.time() > end_s:
            break
    await client.close()
    return tally
