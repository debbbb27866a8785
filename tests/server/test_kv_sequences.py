"""An engine's messages in one sequence: gaps, replays, beginnings."""

from __future__ import annotations

from epp.feeds.kv_sequences import REPLAY_PAUSE_S, REPLAY_S, KvSequence, Step


def told(steps: list[Step]) -> list[tuple[str, int]]:
    return [(step.kind, step.number) for step in steps]


def test_messages_from_the_first_on_are_applied_and_tell_all() -> None:
    sequence = KvSequence(replays=False)
    first, second = sequence.live(0, b"a", 0), sequence.live(1, b"b", 0)
    assert first == [Step("apply", 0, b"a", whole=True)]
    assert second == [Step("apply", 1, b"b")]


def test_who_comes_late_misses_nothing_that_is_known_and_is_not_told_all() -> None:
    assert KvSequence(replays=False).live(7, b"a", 0) == [Step("apply", 7, b"a")]


def test_a_gap_without_replay_counts_as_lost() -> None:
    sequence = KvSequence(replays=False)
    sequence.live(0, b"a", 0)
    assert told(sequence.live(4, b"b", 0)) == [("lost", 3), ("apply", 4)]


def test_a_smaller_number_is_another_process() -> None:
    sequence = KvSequence(replays=False)
    sequence.live(5, b"a", 0)
    assert sequence.live(0, b"b", 0) == [Step("anew"), Step("apply", 0, b"b", whole=True)]


def test_a_replay_fills_the_gap_before_what_came_meanwhile() -> None:
    sequence = KvSequence(replays=True)
    sequence.live(0, b"a", 0)
    assert told(sequence.live(3, b"d", 0)) == [("replay", 1)]
    assert told(sequence.live(4, b"e", 0)) == []
    assert told(sequence.replayed(1, b"b", 0)) == [("apply", 1)]
    assert told(sequence.replayed(2, b"c", 0)) == [("apply", 2)]
    assert told(sequence.replayed(3, b"d", 0)) == [("apply", 3)]
    assert told(sequence.replayed(2**64 - 1, b"", 0)) == [("apply", 4)]
    assert told(sequence.live(5, b"f", 0)) == [("apply", 5)]


def test_live_messages_that_a_replay_had_are_not_applied_twice_nor_taken_for_a_beginning() -> None:
    sequence = KvSequence(replays=True)
    sequence.live(2, b"c", 0)
    for number in range(6):
        sequence.replayed(number, b"x", 0)
    sequence.replayed(2**64 - 1, b"", 0)
    assert told(sequence.live(3, b"d", 0)) == []
    assert told(sequence.live(6, b"g", 0)) == [("apply", 6)]


def test_who_comes_late_asks_for_all_and_is_told_all_when_it_begins_at_the_first() -> None:
    sequence = KvSequence(replays=True)
    assert told(sequence.live(2, b"c", 0)) == [("replay", 0)]
    assert sequence.replayed(0, b"a", 0) == [Step("apply", 0, b"a", whole=True)]


def test_a_replay_that_begins_too_late_counts_what_is_gone() -> None:
    sequence = KvSequence(replays=True)
    sequence.live(0, b"a", 0)
    sequence.live(9, b"j", 0)
    assert told(sequence.replayed(6, b"g", 0)) == [("lost", 5), ("apply", 6)]


def test_a_replay_that_never_comes_is_given_up_and_not_asked_again_at_once() -> None:
    sequence = KvSequence(replays=True)
    sequence.live(0, b"a", 0)
    sequence.live(2, b"c", 0)
    assert sequence.expire(REPLAY_S - 1) == []
    assert told(sequence.expire(REPLAY_S)) == [("lost", 1), ("apply", 2)]
    assert told(sequence.live(4, b"e", REPLAY_S)) == [("lost", 1), ("apply", 4)]
    assert told(sequence.live(6, b"g", REPLAY_S + REPLAY_PAUSE_S)) == [("replay", 5)]
