"""Broken KV events, and engines whose messages are lost, replayed or begin anew: ``python -m tests.fuzz.kv_events``.

Messages as vLLM and SGLang send them are broken in bytes and values: each must be read or refused, whatever
is read be applied, and nothing be left once all is forgotten. Sequences must apply each message once and in
order, count each that never came, and know all that an engine still tells once nothing is lost any more.
Case number n of seed s is always the same.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgspec

from epp.errors import UnreadableError
from epp.feeds.kv_sequences import KvSequence
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.kv_messages import read_batch
from tests.fuzz import cases

if TYPE_CHECKING:
    import random

    from epp.feeds.kv_sequences import Step

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**32, 2**63, 2**64 - 1, 1.5, float("inf"), "", "GPU", "BlockStored", b"", b"\0" * 40,
    [], [[]], {}, {"type": "BlockRemoved"}, [None], [-1], [2**64 - 1] * 40, list(range(300)),
)  # fmt: skip
_KINDS = ("full_attention", "sliding_window", "mamba", "cross_attention", None)
_SLOTS = 3


def message(rng: random.Random) -> Any:
    """A message as an engine would send it, of few blocks, so that they meet again."""
    events = [event(rng) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.5:
        return [0.5, events, rng.choice([None, 0, 1])]
    return {"ts": 0.5, "events": events, "data_parallel_rank": rng.choice([None, 0])}


def event(rng: random.Random) -> Any:
    """One event, as an array or a map."""
    hashes = [
        rng.choice([number, number.to_bytes(32)]) for number in rng.sample(range(1, 40), rng.randint(0, 5))
    ]
    told: dict[str, Any] = {
        "type": rng.choice(["BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared"])
    }
    if told["type"] != "AllBlocksCleared":
        told["block_hashes"] = hashes
    if told["type"] == "BlockStored":
        size = rng.choice([1, 8, 16, 16, 48])
        told |= {"parent_block_hash": rng.choice([None, None, *range(1, 10)])}
        told |= {"token_ids": [rng.randrange(4) for _ in range(size * len(hashes))], "block_size": size}
        told |= {"lora_id": None, "medium": rng.choice(["GPU", "CPU"]), "lora_name": rng.choice([None, "a"])}
        told |= {"extra_keys": rng.choice([None, [["salt"]], [["b", ["image", 1]], None]])}
        told |= {"group_idx": rng.choice([None, 0, 1]), "kv_cache_spec_kind": rng.choice(_KINDS)}
        told |= {"kv_cache_spec_sliding_window": rng.choice([None, 32])}
    return told if rng.random() < 0.5 else list(told.values())


def break_value(value: Any, rng: random.Random) -> Any:
    """Replace one thing somewhere in a value."""
    if not isinstance(value, (list, dict)) or not value or rng.random() < 0.2:
        return rng.choice(_ODD)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[key] = break_value(value[key], rng)
    return value


def break_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, repeat or replace some."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice([b"", rng.randbytes(3), data[at:] * 2]) + data[at + rng.randint(0, 9) :]


def tell(rng: random.Random) -> str:
    """Give messages to an index, whole and broken ones; what became of the last."""
    index, became = EngineBlocks(7, max_blocks=600), ""
    for _ in range(rng.randint(1, 12)):
        found, slot = message(rng), rng.randrange(_SLOTS)
        if rng.random() < 0.4:
            found = break_value(found, rng)
        data = msgspec.msgpack.encode(found)
        if rng.random() < 0.2:
            data = break_bytes(data, rng)
        try:
            batch = read_batch(data)
        except UnreadableError:
            became = "refused"
            continue
        became = "read in part" if batch.unread else "read"
        for each in batch.events:
            for _ in index.apply(slot, min(batch.rank, 1), each):
                if rng.random() < 0.05:
                    index.clear(slot, 0)
        ids = msgspec.msgpack.encode([rng.randrange(4) for _ in range(1600)])[-1600:]
        chains = index.chains({slot: ""}, ids, "")
        for tokens in index.held_tokens([slot], chains, {slot: ""}).values():
            assert 0 <= tokens <= 400
        if (credit := index.credit(slot, chains, "")) and rng.random() < 0.5:
            index.settle(credit)
    for slot in range(_SLOTS):
        index.forget(slot)
    while index.tidy():
        pass
    assert index.blocks == 0, f"{index.blocks} blocks are left"
    assert not any(any(layer) for layer in (*index._layers, index._credited)), "a mark is left"
    return became


class Listener:
    """One sequence, and an engine whose messages it hears.

    Args:
        rng: draws what happens.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._now_s = rng, 0.0
        self._sequence = KvSequence(replays=rng.random() < 0.7)
        self._kept: deque[int] = deque(maxlen=rng.choice([0, 3, 100]))
        self._number, self._life = 0, 0
        self._asked: tuple[int, int] | None = None  # life and number
        self._expected: int | None = None
        self._last: tuple[int, int] | None = None
        self.happened = Counter[str]()

    def publish(self, loss: float) -> None:
        """Publish a message, which may be lost."""
        number, self._number = self._number, self._number + 1
        self._kept.append(number)
        if self._rng.random() >= loss:
            self._do(self._sequence.live(number, self._data(number), self._now_s))

    def restart(self) -> None:
        """Be another process."""
        self._number, self._life = 0, self._life + 1
        self._kept.clear()

    def answer(self, silence: float) -> None:
        """Answer a replay that was asked for; a part of it may be missing at the end."""
        if self._asked is not None:
            (life, first), self._asked = self._asked, None
            for number in self._kept if life == self._life else ():
                if self._rng.random() < silence:
                    return
                if number >= first:
                    self._do(self._sequence.replayed(number, self._data(number), self._now_s))
            self._do(self._sequence.replayed(2**64 - 1, b"", self._now_s))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        self._do(self._sequence.expire(self._now_s))

    def check_quiet(self) -> None:
        """After messages of which none is lost, all must be known."""
        while self._sequence.replaying:
            self.answer(0.0)
            self.wait(6.0)
        self._kept.clear()
        for _ in range(2):
            self.publish(0.0)
            self.answer(0.0)
        assert self._last == (self._life, self._number - 1), f"{self._last} of {self._life, self._number}"

    def _data(self, number: int) -> bytes:
        return f"{self._life} {number}".encode()

    def _do(self, steps: list[Step]) -> None:
        for step in steps:
            self.happened[step.kind] += 1
            if step.kind == "replay":
                self._asked = self._life, step.number
            elif step.kind == "anew":
                self._expected = self._asked = None
            elif step.kind == "lost":
                assert self._expected is not None
                assert step.number > 0
                self._expected += step.number
            else:
                life, number = map(int, step.data.split())
                assert number == step.number
                assert self._expected in (None, number), f"{number} where {self._expected} was due"
                assert step.whole == (number == 0)
                self._expected, self._last = number + 1, (life, number)


def listen(rng: random.Random) -> str:
    """Play one engine's life; what happened least."""
    one = Listener(rng)
    for _ in range(rng.randint(1, 60)):
        match rng.randrange(8):
            case 0 if rng.random() < 0.3:
                one.restart()
            case 1 | 2:
                one.answer(rng.choice([0.0, 0.3]))
            case 3:
                one.wait(rng.choice([0.1, 6.0, 40.0]))
            case _:
                one.publish(0.3)
    one.check_quiet()
    return min(one.happened, key=one.happened.__getitem__)


def run(seed: int, count: int) -> Counter[str]:
    """So many cases of both kinds; what became of them.

    Raises:
        RuntimeError: naming the case that broke a rule.
    """
    return cases.run(seed, count, tell, listen)


if __name__ == "__main__":
    cases.main(__doc__, run)
