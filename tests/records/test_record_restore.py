"""Seeds from records: whose, how old, how far, and never for longer than there is time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.prefix_cache.blocks import BlockHasher
from epp.prefix_cache.warm_index import WarmIndex
from epp.records.files import record_files
from epp.records.restore import read_seeds
from tests.kit.records import (
    HASHER,
    POOL,
    WALL_S,
    ask_of,
    decided,
    outcome_of,
    picker_of,
    prompt_of,
    record_all,
    recorder_to,
)

if TYPE_CHECKING:
    from pathlib import Path

    from epp.records.restore import Restored

SLOTS = {endpoint.address: slot for slot, endpoint in enumerate(POOL)}


def read(folder: Path, **changes: Any) -> Restored:
    arguments: dict[str, Any] = {
        "key_id": HASHER.key_id,
        "since_wall_s": 0.0,
        "slots": SLOTS,
        "capacities": dict.fromkeys(SLOTS.values(), 1e6),
        "hurry": lambda: False,
    }
    return read_seeds(folder, **{**arguments, **changes})


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_each_conversation_is_expected_where_it_was(tmp_path: Path, compress: str) -> None:
    requests = decided(48)
    record_all(tmp_path, requests, compress=compress, file_bytes=20_000)
    restored = read(tmp_path)
    assert (restored.requests, restored.foreign_files, restored.complete) == (48, 0, True)
    index = WarmIndex(name_block=HASHER.export_id, coarse_blocks=HASHER.coarse_blocks)
    index.seed(restored.seeds)
    fresh = picker_of(index=index)
    step = HASHER.coarse_blocks * 64
    for decision, ask in requests[-8:]:
        again = fresh.decide(ask, 0.0, 0.0)
        slot = decision.snapshot.endpoints.index(decision.endpoint)
        assert again.snapshot.cached_tokens[slot] >= ask.prompt_tokens // step * step
        fresh.end(again.id, "completed", 0.0)


def test_only_records_that_are_young_and_under_our_key_count(tmp_path: Path) -> None:
    record_all(tmp_path, decided(20))
    assert read(tmp_path, since_wall_s=WALL_S + 10).requests == 10
    other = read(tmp_path, key_id=BlockHasher(b"another secret of others").key_id)
    assert (other.requests, other.foreign_files, len(other.seeds)) == (0, 1, 0)
    assert BlockHasher(b"the secret of the tests", 512).key_id != HASHER.key_id
    assert read(tmp_path / "nowhere").requests == 0
    assert read(tmp_path, slots={}).requests == 0


def test_what_never_reached_an_engine_does_not_count(tmp_path: Path) -> None:
    scheduler = picker_of()
    ends: list[dict[str, Any]] = [
        {"cause": "unreachable", "status": 503},
        {"cause": "refused", "status": None},
        {"cause": "completed", "status": 500},
        {"cause": "client-gone", "status": None},
        {"endpoint": POOL[2].address},
    ]
    with recorder_to(tmp_path) as (recorder, _):
        for number, end in enumerate(ends):
            ask = ask_of(number)
            decision = scheduler.decide(ask, 0.0, WALL_S)
            recorder.record(decision)
            recorder.record(outcome_of(decision, **end), WALL_S)
        pending = ask_of(99)
        recorder.record(scheduler.decide(pending, 0.0, WALL_S))
    seeds = read(tmp_path).seeds
    found = [seeds.take(HASHER.coarse_ids(prompt_of(number))[0]) for number in range(5)]
    assert found[:3] == [[], [], []]
    assert len(found[3]) == 1
    assert found[4] == [2], "where it was served in the end"
    assert len(seeds.take(HASHER.coarse_ids(prompt_of(99))[0])) == 1, "in flight when the picker died"


def test_reading_stops_when_time_is_up(tmp_path: Path) -> None:
    record_all(tmp_path, decided(200), file_bytes=20_000)
    assert len(record_files(tmp_path)) > 5
    calls = iter([False] * 4)
    restored = read(tmp_path, hurry=lambda: next(calls, True))
    assert not restored.complete
    assert 0 < restored.requests < 200


def test_reading_stops_when_every_cache_is_accounted_for(tmp_path: Path) -> None:
    requests = decided(200)
    record_all(tmp_path, requests, file_bytes=20_000)
    restored = read(tmp_path, capacities=dict.fromkeys(SLOTS.values(), 2000.0))
    assert restored.seeds.full
    assert restored.requests < 100


def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    record_all(tmp_path, decided(20))
    (path,) = record_files(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:10], b'{"kind":3}\n', b"\xff\n", *lines[10:-1], lines[-1][:40]]))
    assert read(tmp_path).requests == 20, "the last line was an outcome"
    path.write_bytes(b"".join(lines[1:]))
    assert read(tmp_path).foreign_files == 1, "without its first line a file is nobody's"
