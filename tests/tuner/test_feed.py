"""Samples out of folders of records: rotation, damage, other schemas, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.records.files import file_name
from epp.schedule.decision import outcome_record, to_record
from epp_lab.sidecar.feed import FeedState
from epp_lab.tuner.samples import SampleFeed
from tests.kit.clock import ManualClock
from tests.kit.records import WALL_S, decided, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from epp_lab.tuner.samples import Sample

LATER_S = WALL_S + 10_000.0


def lines(number: int = 6, prefix: str = "id") -> list[dict[str, Any]]:
    out = []
    for decision, _ in decided(number, prefix=prefix):
        out.append(to_record(decision))
        out.append(outcome_record(outcome_of(decision), decision.at_wall_s + 0.1))
    return out


def text(records: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def path_of(folder: Path, number: int = 0) -> Path:
    return folder / file_name(WALL_S + number, compressed=False)


def feed_of(folder: Path, told: list[str] | None = None, state: FeedState | None = None) -> SampleFeed:
    said = [] if told is None else told
    return SampleFeed(folder, policy="gorgo", report=said.append, state=state or FeedState())


def taken(feed: SampleFeed, now_wall_s: float = WALL_S, give_up_s: float = 1e9) -> list[Sample]:
    return list(feed.new(now_wall_s, give_up_s=give_up_s))


def test_each_request_is_one_sample_over_rotations_and_interleaved_pickers(tmp_path: Path) -> None:
    records, others = lines(6), lines(4, "other")
    first, second, other = path_of(tmp_path), path_of(tmp_path, 1), path_of(tmp_path, 2)
    feed = feed_of(tmp_path)
    first.write_bytes(text(records[:5]))
    other.write_bytes(text(others[:3]))
    found = taken(feed)
    second.write_bytes(text(records[5:8]))
    with other.open("ab") as file:
        file.write(text(others[3:]))
    found += taken(feed)
    first.unlink()  # rotated away
    with second.open("ab") as file:
        file.write(text(records[8:]))
    found += taken(feed)
    assert sorted(sample.id for sample in found) == [
        *(f"id-{n}" for n in range(6)),
        *(f"other-{n}" for n in range(4)),
    ]
    assert taken(feed) == []
    assert first.name not in feed.state.lines


def test_a_folder_that_is_empty_for_a_moment_does_not_count_again(tmp_path: Path) -> None:
    records, folder, away = lines(4), tmp_path / "records", tmp_path / "away"
    folder.mkdir()
    path_of(folder).write_bytes(text(records))
    path_of(folder, 1).write_bytes(b'{"kind": "file", "schema": 999}\n')
    told: list[str] = []
    feed = feed_of(folder, told)
    assert len(taken(feed)) == 4
    folder.rename(away)
    folder.mkdir()  # what a volume is mounted on
    assert taken(feed) == []
    restarted = feed_of(folder, state=msgspec.json.decode(msgspec.json.encode(feed.state), type=FeedState))
    assert taken(restarted) == []
    folder.rmdir()
    away.rename(folder)
    assert taken(feed) == []
    assert taken(restarted) == []
    assert feed.state.seen == restarted.state.seen == 4
    assert len(told) == 1  # of the file under another schema


def test_what_was_there_before_the_first_start_is_history(tmp_path: Path) -> None:
    records = lines(6)
    path = path_of(tmp_path)
    path.write_bytes(text(records[:6]))
    feed = SampleFeed(tmp_path, policy="gorgo", report=lambda _: None)
    with path.open("ab") as file:
        file.write(text(records[6:]))
    assert [sample.id for sample in taken(feed)] == ["id-3", "id-4", "id-5"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cuts_and_damage_cost_the_lines_they_hit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("records")
    whole = text(lines(4))
    cut = data.draw(st.integers(0, len(whole)))
    path = path_of(folder)
    path.write_bytes(whole[:cut])
    feed = feed_of(folder)
    found = taken(feed)
    assert len(found) <= 4
    if data.draw(st.booleans()):  # it was only slow
        with path.open("ab") as file:
            file.write(whole[cut:])
        assert len(found) + len(taken(feed)) == 4
    else:  # it was killed; what comes is in another file
        path_of(folder, 9).write_bytes(b'{"half": \n\xff\xfe\n[1]\n' + text(lines(2, "next")))
        assert [sample.id for sample in taken(feed)] == ["next-0", "next-1"]
        assert feed.state.damaged == 3


def test_missing_outcomes_are_given_up_after_a_time_as_still_running(tmp_path: Path) -> None:
    records = lines(3)
    path_of(tmp_path).write_bytes(text([records[0], *records[2:]]))
    feed = feed_of(tmp_path)
    assert len(taken(feed)) == 2
    found = taken(feed, LATER_S, give_up_s=60.0)
    assert [(sample.id, sample.censored, sample.answered) for sample in found] == [("id-0", True, False)]
    path_of(tmp_path, 1).write_bytes(text([records[1]]))
    assert taken(feed, LATER_S) == []


def test_requests_that_too_many_wait_beside_are_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SampleFeed, "max_waiting", 2)
    records = lines(5)
    path_of(tmp_path).write_bytes(text(records[::2]))  # no outcomes
    told: list[str] = []
    feed = feed_of(tmp_path, told)
    assert taken(feed) == []
    assert len(feed.state.waiting) == 2
    assert told == ["more than 2 requests wait for outcomes: the oldest do not count"]


def test_what_is_dispatched_around_a_step_of_the_clock_does_not_count(tmp_path: Path) -> None:
    records = lines(8)
    path = path_of(tmp_path)
    path.write_bytes(text(records[:5]))
    feed = feed_of(tmp_path)
    assert len(taken(feed)) == 2
    clock = ManualClock(wall_s=WALL_S + 4.0)
    assert feed.check_clock(clock, wait_s=2.0) == 0.0
    clock._offset_s += 2996.0
    assert feed.check_clock(clock, wait_s=2.0) == 2996.0
    with path.open("ab") as file:
        file.write(text(records[5:]))
    assert [sample.id for sample in taken(feed)] == ["id-7"]
