from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.signals.ledger import LoadLedger

SLOTS = 3
TTL_S = 10.0


def counters(book: LoadLedger, slot: int) -> tuple[float, float, float, float]:
    queued, pending, running, decoding, _ = book.block[:, slot].tolist()
    return queued, pending, running, decoding


@dataclass
class Entry:
    slot: int | None
    prompt: int
    uncached: int
    expires_s: float
    decoding: bool = False


class LedgerMachine(RuleBasedStateMachine):
    """Any order of reports, repeated, late and unknown ones: the counters are the sums over the leases."""

    ids = st.sampled_from([f"r{i}" for i in range(12)])

    @initialize()
    def start(self) -> None:
        self.book = LoadLedger(TTL_S)
        self.book.resize(SLOTS)
        self.model: dict[str, Entry] = {}
        self.now_s = 0.0

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(name=ids, slot=st.integers(0, SLOTS - 1), prompt=st.integers(0, 10**6), share=st.floats(0, 1))
    def reserve(self, name: str, slot: int, prompt: int, share: float) -> None:
        uncached = int(prompt * share)
        self.end(name)
        self.book.reserve(name, slot, prompt, uncached, self.now_s)
        self.model[name] = Entry(slot, prompt, uncached, self.now_s + TTL_S)

    @rule(name=ids)
    def first_token(self, name: str) -> None:
        entry = self.model.get(name)
        fresh = entry is not None and entry.slot is not None and not entry.decoding
        assert self.book.first_token(name, self.now_s) is fresh
        if fresh and entry is not None:
            entry.decoding, entry.expires_s = True, self.now_s + TTL_S
            self.model[name] = self.model.pop(name)

    @rule(name=ids, slot=st.integers(0, SLOTS - 1), uncached=st.integers(0, 10**6))
    def move(self, name: str, slot: int, uncached: int) -> None:
        self.book.move(name, slot, uncached)
        entry = self.model.get(name)
        if entry is not None and entry.slot != slot:
            entry.slot, entry.uncached = slot, uncached

    @rule(name=ids)
    def end(self, name: str) -> None:
        entry = self.model.pop(name, None)
        assert self.book.end(name) is (entry is not None and entry.slot is not None)

    @rule()
    def expire(self) -> None:
        due = [name for name, entry in self.model.items() if entry.expires_s <= self.now_s]
        assert self.book.expire(self.now_s) == due
        for name in due:
            del self.model[name]

    @rule(slot=st.integers(0, SLOTS - 1))
    def forget(self, slot: int) -> None:
        mine = [entry for entry in self.model.values() if entry.slot == slot]
        self.book.forget(slot)
        for entry in mine:
            entry.slot = None

    @rule()
    def grow(self) -> None:
        self.book.resize(SLOTS + 5)

    @invariant()
    def counters_are_the_sums(self) -> None:
        for slot in range(SLOTS):
            mine = [entry for entry in self.model.values() if entry.slot == slot]
            assert counters(self.book, slot) == (
                sum(entry.prompt for entry in mine),
                sum(entry.uncached for entry in mine if not entry.decoding),
                len(mine),
                sum(entry.decoding for entry in mine),
            )


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=30, stateful_step_count=40)


def test_every_listener_hears_of_a_change() -> None:
    book, heard = LoadLedger(TTL_S), list[tuple[str, int, int]]()
    book.resize(SLOTS)
    for name in ("one", "other"):
        book.on_change[name] = lambda slot, tokens, name=name: heard.append((name, slot, tokens))  # type: ignore[misc]
    book.reserve("r", 1, 100, 60, 0.0)
    assert heard == [("one", 1, 60), ("other", 1, 60)]
