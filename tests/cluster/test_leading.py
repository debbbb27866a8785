"""Who leads: pickers whose messages are lost, late, split, and who die."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from epp.cluster.leading import LISTEN_S, LOST_S, Leading
from epp.cluster.messages import Lead
from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Pool:
    """Pickers that beat each second; `obeyed` has what each has followed, in order."""

    pickers: dict[str, Leading] = field(default_factory=dict)
    passes: Callable[[str, str], bool] = lambda *_: True
    away: set[str] = field(default_factory=set)
    delay_s: float = 0.0
    now_s: float = 0.0
    clocks: dict[str, float] = field(default_factory=dict)
    obeyed: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _late: list[tuple[float, str, str, Lead]] = field(default_factory=list)

    def join(self, *names: str, term: int = 0) -> None:
        for name in names:
            self.pickers[name] = Leading(name, self.now_s, term)
            self.obeyed[name] = []

    def split(self, *parts: str) -> None:
        self.passes = lambda one, other: any({one, other} <= set(part) for part in parts)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for name, picker in list(self.pickers.items()):
                self.now_s += 1.0 / len(self.pickers)
                self.deliver()
                picker.tick(self.now_s, connected=name not in self.away)
                said = picker.said(self.now_s + self.clocks.get(name, 0.0))
                for other in self.pickers if said is not None else ():
                    assert said is not None
                    if other != name and not {name, other} & self.away and self.passes(name, other):
                        self._late.append((self.now_s + self.delay_s, name, other, said))
                self.deliver()

    def deliver(self) -> None:
        due = [each for each in self._late if each[0] <= self.now_s]
        self._late = [each for each in self._late if each[0] > self.now_s]
        for _, name, other, said in due:
            if other in self.pickers:
                now_wall_s = self.now_s + self.clocks.get(other, 0.0)
                self.pickers[other].hear(name, said, self.now_s, now_wall_s)
        for name, picker in self.pickers.items():
            obeyed, now = self.obeyed[name], (picker.term, picker.leader)
            if picker.leader and obeyed[-1:] != [now]:
                obeyed.append(now)

    @property
    def leaders(self) -> list[str]:
        return [name for name, picker in self.pickers.items() if picker.leads]

    def check(self) -> None:
        """All follow one, and no picker has followed two in a term, or a lower one after a higher."""
        (leader,) = self.leaders
        assert {picker.leader for picker in self.pickers.values()} == {leader}
        assert len({picker.term for picker in self.pickers.values()}) == 1
        for obeyed in self.obeyed.values():
            terms = [term for term, _ in obeyed]
            assert terms == sorted(set(terms))


@pytest.fixture
def pool() -> Pool:
    made = Pool()
    made.join("a", "b", "c")
    made.run(int(LISTEN_S) + 2)
    return made


def test_the_first_by_name_leads_and_stays_when_an_earlier_one_joins(pool: Pool) -> None:
    pool.check()
    assert pool.leaders == ["a"]
    pool.join("0")
    pool.run(20)
    pool.check()
    assert pool.leaders == ["a"], "a change of leader costs a trial"


def test_a_killed_leader_is_replaced_by_the_first_of_those_alive(pool: Pool) -> None:
    del pool.pickers["a"]
    pool.run(int(LOST_S) + 2)
    pool.check()
    assert pool.leaders == ["b"]
    assert pool.pickers["c"].term == 2
    del pool.pickers["b"]
    pool.pickers["c"].left("b")  # it said so
    pool.run(2)
    assert pool.leaders == ["c"]


def test_who_is_without_nats_does_not_lead_and_nobody_changes_when_all_are(pool: Pool) -> None:
    pool.away = {"a", "b", "c"}
    pool.run(60)
    assert pool.leaders == []
    pool.away = set()
    pool.run(int(LISTEN_S) + 2)
    pool.check()
    assert pool.leaders == ["a"]
    assert pool.pickers["a"].term == 1


def test_a_leader_that_was_away_follows_who_leads_by_now(pool: Pool) -> None:
    pool.away = {"a"}
    pool.run(30)
    assert pool.leaders == ["b"]
    pool.away = set()
    led = pool.leaders
    for _ in range(20):
        pool.run(1)
        led += pool.leaders
    pool.check()
    assert set(led) == {"b"}, "it never led between its return and the first message"


def test_after_a_split_the_higher_term_wins_and_of_two_in_one_term_the_first(pool: Pool) -> None:
    pool.join("d")
    pool.run(10)
    pool.split("ab", "cd")
    pool.run(20)
    assert pool.leaders == ["a", "c"]
    pool.passes = lambda *_: True
    pool.run(10)
    pool.check()
    assert pool.leaders == ["c"]
    pool.split("ac", "bd")
    pool.run(3)
    del pool.pickers["c"]
    pool.run(20)
    assert pool.leaders == ["a", "b"]
    assert {picker.term for picker in pool.pickers.values()} == {3}
    pool.passes = lambda *_: True
    pool.run(10)
    pool.check()
    assert pool.leaders == ["a"]
    assert pool.pickers["a"].term == 4


def test_two_in_one_term_of_whom_the_first_dies_leave_one() -> None:
    pool = Pool(passes=lambda *_: False)
    pool.join("a", "b", "c")
    pool.run(10)
    assert pool.leaders == ["a", "b", "c"]
    pool.passes = lambda one, other: "b" not in (one, other)
    pool.run(1)
    del pool.pickers["a"]
    pool.passes = lambda *_: True
    pool.run(10)
    pool.check()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("delay_s", [0.0, 2.5])
def test_whatever_is_lost_or_late_ends_with_one_leader_and_terms_that_rise(seed: int, delay_s: float) -> None:
    pool = Pool(delay_s=delay_s)
    pool.join(*"abcde")
    draws = iter(range(10**6))

    def chance(share: float) -> bool:
        return keyed_uniform(seed, str(next(draws)), "leading") < share

    for _ in range(8):
        loss = keyed_uniform(seed, str(next(draws)), "leading")
        pool.passes = lambda *_, loss=loss: not chance(loss)
        pool.away = {name for name in pool.pickers if chance(0.2)}
        pool.run(15)
        if chance(0.3) and len(pool.pickers) > 2:
            del pool.pickers[min(pool.pickers)]
        if chance(0.3):
            pool.join(f"{'az'[chance(0.5)]}{next(draws)}", term=next(draws) % 40)
    pool.passes, pool.away = lambda *_: True, set()
    pool.run(20)
    pool.check()


def test_a_term_of_an_earlier_life_is_exceeded(pool: Pool) -> None:
    pool.join("d", term=7)
    pool.run(3)
    pool.check()
    assert pool.leaders == ["a"]
    assert pool.pickers["d"].term == 8
    again = Pool()
    again.join("a", term=2)
    again.join("b", term=9)
    again.run(10)
    again.check()
    assert again.pickers["a"].term == 10


def test_one_that_restarts_with_the_present_term_changes_nothing(pool: Pool) -> None:
    pool.join("d", term=1)
    pool.run(10)
    pool.check()
    assert pool.pickers["d"].term == 1


def test_one_that_resigns_is_replaced_and_stays_among_those_that_obey(pool: Pool) -> None:
    pool.pickers["a"].resign()
    assert pool.leaders == []
    pool.run(int(LOST_S) + 2)
    pool.check()
    assert pool.leaders == ["b"]


def test_where_there_is_a_lease_its_holder_leads_whatever_its_name(pool: Pool) -> None:
    for name, picker in pool.pickers.items():
        picker.lease = name == "c"
    assert pool.leaders == []
    pool.run(3)
    pool.check()
    assert pool.leaders == ["c"]
    pool.split("ab", "c")
    pool.run(20)
    assert pool.leaders == ["c"], "a split of NATS makes no second leader"
    pool.pickers["c"].lease = False
    pool.pickers["b"].lease = True
    pool.run(20)
    assert pool.leaders == ["b"]
    pool.passes = lambda *_: True
    pool.run(3)
    pool.check()
    assert pool.leaders == ["b"]


@pytest.mark.parametrize("order", ["abc", "cba"])
def test_of_two_that_took_one_term_by_the_lease_its_present_holder_leads(order: str) -> None:
    pool = Pool()
    pool.join(*order)
    pool.run(10)
    pool.passes = lambda *_: False
    for holder in ("b", "c"):
        for name, picker in pool.pickers.items():
            picker.lease = name == holder
        pool.run(2)
    assert [pool.pickers[name].said(0.0) for name in "bc"] == [Lead(2, "b", 0.0), Lead(2, "c", 0.0)]
    pool.passes = lambda *_: True
    pool.run(5)
    pool.check()
    assert pool.leaders == ["c"]
    assert pool.pickers["a"].term == 3


def test_a_leader_known_by_hearsay_is_waited_for(pool: Pool) -> None:
    first = pool.pickers["a"]
    first.hear("b", Lead(2, "d", pool.now_s), pool.now_s, pool.now_s)
    first.tick(pool.now_s + 1.0, connected=True)
    assert first.leader == "d"
    first.tick(pool.now_s + LOST_S, connected=True)
    assert first.leader == "a"


def test_a_lower_term_is_refused_and_the_leader_accepts_nobody(pool: Pool) -> None:
    assert pool.pickers["b"].accepts(Lead(1, "a", 0.0))
    assert not pool.pickers["b"].accepts(Lead(0, "a", 0.0))
    assert not pool.pickers["b"].accepts(Lead(1, "c", 0.0))
    assert not pool.pickers["a"].accepts(Lead(1, "a", 0.0))


def test_the_largest_difference_of_clocks_is_known_without_single_late_messages(pool: Pool) -> None:
    assert pool.pickers["a"].skew_s < 0.1
    pool.clocks["c"] = -8.0
    pool.delay_s = 1.0
    pool.run(5)
    assert 6.9 < pool.pickers["a"].skew_s < 9.1
    assert pool.pickers["c"].skew_s > 6.9
    del pool.pickers["c"]
    pool.run(6)
    assert pool.pickers["a"].skew_s < 1.5
