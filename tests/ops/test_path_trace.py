"""A request's path through two regions, from the records of both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.kit.records import command, decided, outcome_of, recorder_to

if TYPE_CHECKING:
    from pathlib import Path


def record_path(folder: Path, ahead_s: float = 0.0) -> None:
    """A request of ``r1`` which its picker forwards to ``r2``, whose clock is ahead."""
    for region, others in (("r1", 0), ("r2", 3)):
        here = decided(1 + others, prefix=region)[others][0]
        if region == "r2":
            asked = replace(here.request, origin_region="r1", origin_decision="r1-0")
            here = replace(here, request=asked, at_wall_s=here.at_wall_s - others + 0.015 + ahead_s)
        with recorder_to(folder / region) as (recorder, _):
            recorder.record(here)
            recorder.record(outcome_of(here, ttft_ms=40.0, e2e_ms=60.0), here.at_wall_s + 1.0)


def drawn(folder: Path, decision_id: str) -> dict[str, list[dict[str, Any]]]:
    places = [word for region in ("r2", "r1") for word in ("--records", folder / region)]
    assert command("explain", "--trace", decision_id, *places, "--out", folder / "trace.json") == 0
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    for event in events:
        assert event.keys() >= {"ph", "name", "pid", "tid", "ts"}
        assert event.get("dur", 0) >= 0
    regions = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    return {name: [event for event in events if event["pid"] == pid] for pid, name in regions.items()}


@pytest.mark.parametrize("asked", ["r1-0", "r2-3"])
@pytest.mark.parametrize("ahead_s", [0.0, 5.0, -5.0])
def test_both_regions_are_one_line_of_time(
    tmp_path: Path, asked: str, ahead_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    record_path(tmp_path, ahead_s)
    regions = drawn(tmp_path, asked)
    assert "2 regions" in capsys.readouterr().out
    assert list(regions) == ["r1", "r2"]
    spans = {
        (name, each["name"]): each for name, events in regions.items() for each in events if each["ph"] == "X"
    }
    assert list(spans) == [
        ("r1", "request"),
        ("r1", "forward"),
        ("r2", "forwarded request"),
        ("r2", "to first token"),
        ("r2", "decode"),
    ]
    outer, inner = spans["r1", "request"], spans["r2", "forwarded request"]
    assert outer["ts"] < inner["ts"] < outer["ts"] + outer["dur"]
    assert all(each["args"]["origin_decision"] == "r1-0" for each in spans.values())
    assert ("clock_moved_ms" in inner["args"]) == bool(ahead_s)
    ends = {each["ph"]: each["id"] for events in regions.values() for each in events if each["name"] == "hop"}
    assert ends == {"s": 1, "f": 1}
