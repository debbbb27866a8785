"""Records of what was served are a trace to replay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.lab.compare.files import load_trace
from epp.lab.compare.flight_records import DEFAULT_OUTPUT_TOKENS, read_flight_records
from epp.lab.compare.trace import TraceError
from epp.records.files import file_name

if TYPE_CHECKING:
    from pathlib import Path


def decision(name: str, at: float, tokens: int = 600, **more: Any) -> dict[str, Any]:
    request = {"prompt_tokens": tokens, "max_output_tokens": None, "affinity_key": ""} | more.pop(
        "request", {}
    )
    return {
        "schema": 1,
        "kind": "decision",
        "id": name,
        "at": at,
        "request": request,
        "endpoints": ["a:1"],
    } | more


def outcome(name: str, **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "outcome",
        "id": name,
        "prompt_tokens": None,
        "completion_tokens": None,
    } | more


def test_times_lengths_sessions_and_blocks_are_those_recorded() -> None:
    found = read_flight_records(
        [
            decision("a", 100.0, session="s1", blocks=["x", "y"], block_tokens=255.6),
            decision("b", 101.5, session="s1", blocks=["x", "y", "z"], block_tokens=256.4),
            outcome("b", completion_tokens=77, prompt_tokens=800),
            decision("c", 101.0, request={"max_output_tokens": 40, "affinity_key": "k"}),
        ]
    )
    assert [r.at_ms for r in found] == [0.0, 1000.0, 1500.0]
    first, other, second = found
    assert (first.session, other.session, second.session) == ("s1", "k", "s1")
    assert second.block_ids[:2] == first.block_ids
    assert {r.block_tokens for r in found} == {256}
    assert (first.output_tokens, other.output_tokens, second.output_tokens) == (DEFAULT_OUTPUT_TOKENS, 40, 77)
    assert (first.prompt_tokens, second.prompt_tokens) == (600, 800)


def test_requests_without_a_prompt_are_left_out() -> None:
    assert len(read_flight_records([decision("a", 1.0), decision("b", 2.0, tokens=0)])) == 1
    with pytest.raises(TraceError, match="nothing can be replayed"):
        read_flight_records([decision("b", 2.0, tokens=0), outcome("b")])


def test_a_record_that_is_none_is_named() -> None:
    with pytest.raises(TraceError, match="record 2"):
        read_flight_records([decision("a", 1.0), {"kind": "decision", "id": "b", "at": "noon"}])


def test_a_folder_of_the_recorder_is_read_and_so_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / file_name(1000.0, compressed=False)
    lines = [json.dumps(decision("a", 1.0)), json.dumps(decision("b", 2.0)), '{"torn']
    path.write_text("\n".join(lines))
    assert len(load_trace(tmp_path)) == 2
    assert load_trace(path) == load_trace(tmp_path)


def test_counts_below_0_are_none() -> None:
    (request,) = read_flight_records(
        [decision("a", 1.0), outcome("a", prompt_tokens=-9, completion_tokens=-5)]
    )
    assert (request.prompt_tokens, request.output_tokens) == (600, DEFAULT_OUTPUT_TOKENS)


def test_a_block_of_no_size_is_refused() -> None:
    with pytest.raises(
        TraceError, match=r"record 1: Expected `float` <= 1000000000.0 - at `\$.block_tokens`"
    ):
        read_flight_records([decision("a", 1.0, blocks=["x"], block_tokens=1e308)])
