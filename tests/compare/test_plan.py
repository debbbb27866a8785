"""Cells: what is tuned on is never judged on, and loads keep their waits through every cut."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest

from epp.errors import ConfigError, EppError
from epp.lab.compare import command
from epp.lab.compare.cells import SWEEP_LOADS, cells_of, parse_shape, sweep_cells
from epp.lab.compare.files import save_trace
from epp.lab.compare.fleets import FLEETS, fleet_from_text, fleet_from_yaml, with_lost_hits
from epp.lab.compare.plan import TUNING_SHARE, Cell, Shape, Source, part_of
from epp.lab.compare.trace import TraceRequest
from epp.lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    from pathlib import Path


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def row(at_ms: float, **more: Any) -> TraceRequest:
    fields: dict[str, Any] = {
        "session": "s",
        "user": "u",
        "prompt_tokens": 100,
        "output_tokens": 5,
        "block_ids": (1,),
    }
    return TraceRequest(at_ms=at_ms, block_tokens=128, **(fields | more))


class TestParts:
    def test_an_open_loop_trace_is_cut_in_time(self) -> None:
        trace = tuple(row(i * 1000.0) for i in range(91))
        tune, judge = part_of(trace, "tune"), part_of(trace, "judge")
        assert len(tune) + len(judge) == len(trace)
        assert tune[-1].at_ms < trace[-1].at_ms * TUNING_SHARE
        assert judge[0].at_ms == pytest.approx(0.0)

    def test_closed_loop_sessions_fall_whole_to_one_part(self) -> None:
        trace = generate(DEMO, 1)
        tune, judge = part_of(trace, "tune"), part_of(trace, "judge")
        assert len(tune) + len(judge) == len(trace)
        assert not {r.user for r in tune} & {r.user for r in judge}
        for part in (tune, judge):
            for request in part:
                assert request.after is None or part[request.after].session == request.session


class TestSource:
    def test_a_trace_is_limited_and_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        save_trace(path, [row(0.0), row(10.0, prompt_tokens=30_000), row(5_000.0)])
        assert len(Source(trace=str(path)).requests(1)) == 2
        assert len(Source(trace=str(path), max_prompt_tokens=0).requests(1)) == 3
        assert len(Source(trace=str(path), until_s=1.0).requests(1)) == 1
        with pytest.raises(EppError, match="no request is left"):
            Source(trace=str(path), max_prompt_tokens=10).requests(1)

    def test_a_shape_sets_another_pace(self) -> None:
        source = Source(workload="demo", shape=Shape("concurrent", 4))
        assert sum(r.after is None for r in source.requests(1)) == 4

    def test_warm_up_is_five_minutes_or_a_sixth(self) -> None:
        source = Source(workload="demo")
        assert 3.0 < Cell("c", source).warmup(source.requests(1)) < 5.0
        assert Cell("c", source, warmup_s=1.0).warmup(source.requests(1)) == 1.0
        assert Cell("c", source).warmup((row(0.0), row(3.6e6))) == 300.0


class TestCells:
    def test_several_workloads_are_several_cells_with_their_own_pace(self) -> None:
        first, second = cells_of(arguments("--workload", "art-chat,art-chat-apr-7"))
        assert (first.pace, second.pace) == (1.0, 3.0)
        assert second.tuning == Source(workload="art-chat")
        assert first.max_in_flight == 64

    def test_flags_override(self) -> None:
        (cell,) = cells_of(
            arguments("--workload", "art-chat", "--max-in-flight", "0", "--open-loop", "--load", "2")
        )
        assert (cell.max_in_flight, cell.closed_loop, cell.pace) == (None, False, 0.5)

    def test_a_trace_is_split_only_when_something_is_tuned(self) -> None:
        (cell,) = cells_of(arguments("--trace", "x/some.jsonl.gz"))
        assert (cell.name, cell.source.part) == ("some", "all")
        (cell,) = cells_of(arguments("--trace", "x/some.jsonl.gz", "--tune", "5"))
        assert cell.tuning is not None
        assert (cell.source.part, cell.tuning.part) == ("judge", "tune")

    def test_a_sweep_is_the_cell_at_rising_loads(self) -> None:
        cells = sweep_cells(cells_of(arguments("--workload", "art-chat")), None)
        assert [cell.load for cell in cells] == list(SWEEP_LOADS)
        assert [c.load for c in sweep_cells(cells[:1], "2,1")] == [cells[0].load, 2 * cells[0].load]
        with pytest.raises(EppError, match="numbers"):
            sweep_cells(cells[:1], "fast")
        for loads in ("1,nan", "1,inf", "0"):
            with pytest.raises(EppError, match="above 0"):
                sweep_cells(cells[:1], loads)

    @pytest.mark.parametrize(
        "text",
        [
            "square:3",
            "poisson",
            "poisson:x",
            "concurrent:2.5",
            "concurrent:-1",
            "concurrent:inf",
            "poisson:inf",
        ],
    )
    def test_a_shape_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(EppError, match="shape"):
            parse_shape(text)


class TestFleets:
    def test_all_named_fleets_stand(self) -> None:
        for name in FLEETS:
            assert len(fleet_from_text(name).replicas) >= 3
        assert [r.network.rtt_ms for r in fleet_from_text("paper").replicas] == [20.0, 102.0, 211.0]

    def test_a_line_of_text_and_a_file(self) -> None:
        assert len(fleet_from_text("l40s-x2@20*3,h100@100").replicas) == 4
        text = "replicas:\n- {engine_class: l40s-x2, rtt_ms: 20, count: 2, region: here}\n- {engine_class: h100}\n"
        fleet = fleet_from_yaml(text, "fleet.yaml")
        assert [r.region for r in fleet.replicas] == ["here", "here", "rtt-0ms"]
        assert len({r.address for r in fleet.replicas}) == 3
        assert {r.lost_hit_share for r in with_lost_hits(fleet, 0.3).replicas} == {0.3}

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("replicas:\n- {engine_class: tpu}", "replicas\\[0\\].engine_class"),
            ("replicas:\n- {engine_class: h100, rtt: 3}", "rtt"),
            ("replicas: []", "at least one"),
            ("replicas:\n- {engine_class: h100, lost_hit_share: 2}", "lost_hit_share"),
        ],
    )
    def test_a_file_that_is_wrong_says_where(self, text: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            fleet_from_yaml(text, "fleet.yaml")

    def test_an_unknown_fleet_is_told_what_there_is(self) -> None:
        with pytest.raises(EppError, match="paper"):
            fleet_from_text("mars")
