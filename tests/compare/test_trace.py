"""Public formats become canonical records; lengths, sharing and waiting survive."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from epp.lab.compare.agent_sessions import AgentOptions, read_agent_sessions
from epp.lab.compare.files import load_trace, save_trace
from epp.lab.compare.trace import (
    TraceError,
    TraceRequest,
    dump,
    in_time_order,
    read_canonical,
    read_mooncake,
    select,
)

if TYPE_CHECKING:
    from pathlib import Path


def row(timestamp: int, tokens: int, *ids: int) -> str:
    return json.dumps(
        {"timestamp": timestamp, "input_length": tokens, "output_length": 40, "hash_ids": list(ids)}
    )


def request(at_ms: float, after: int | None = None, think_ms: float = 0.0, tokens: int = 100) -> TraceRequest:
    return TraceRequest(at_ms, "s", "u", tokens, 10, (1, 2), 64, after, think_ms)


MOONCAKE = [
    row(0, 700, 0, 1),
    row(0, 513, 0, 2),
    row(0, 900, 0, 1, 3),
    row(3000, 400, 0),
    row(3000, 512, 9, 9),
]

SESSION: dict[str, Any] = {
    "id": "t1",
    "models": ["m"],
    "block": 64,
    "tool_tokens": 100,
    "system_tokens": 156,
    "requests": [
        [0.0, 640, 80, 5.0, 0.0, [1, 10]],
        {"sub": [[0.0, 320, 16, 2.0, 0.0, [50, 54]], [3.0, 400, 16, None, 1.0, [50, 55]]], "t": 8.0},
        [20.0, 1280, 160, 4.0, 15.0, [1, 8, 60, 71]],
        [2000.0, 1300, 8, 1.0, 1976.0, [1, 8, 60, 71]],
    ],
}


class TestMooncake:
    def test_rows_keep_their_figures_and_spread_within_their_tick(self) -> None:
        trace = list(read_mooncake(MOONCAKE, seed=3))
        assert sorted(r.prompt_tokens for r in trace) == [400, 512, 513, 700, 900]
        assert all(0 <= r.at_ms < 3000 for r in trace[:3])
        assert all(3000 <= r.at_ms < 6000 for r in trace[3:])
        assert [r.at_ms for r in trace] == sorted(r.at_ms for r in trace)
        assert len({r.at_ms for r in trace}) == 5

    def test_the_spread_is_a_function_of_the_seed(self) -> None:
        assert list(read_mooncake(MOONCAKE, seed=3)) == list(read_mooncake(MOONCAKE, seed=3))
        assert list(read_mooncake(MOONCAKE, seed=3)) != list(read_mooncake(MOONCAKE, seed=4))

    def test_scaling_divides_lengths_and_blocks_alike(self) -> None:
        by_ids = {r.block_ids: r for r in read_mooncake(MOONCAKE, scale=4)}
        assert by_ids[0, 1].prompt_tokens == 175
        assert by_ids[0, 1].block_tokens == 128
        assert by_ids[0, 1].output_tokens == 10

    def test_rows_share_a_session_by_the_block_after_the_template(self) -> None:
        sessions = {r.block_ids: r.session for r in read_mooncake(MOONCAKE)}
        assert sessions[0, 1] == sessions[0, 1, 3] != sessions[0, 2]

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (["{"], "line 1"),
            (['{"timestamp": 0}'], "line 1"),
            ([row(3, 1, 0), row(2, 1, 0)], "line 2: timestamp"),
            ([row(0, 1, 0), row(0, -1, 0)], "line 2: .*>= 0.*input_length"),
            ([row(0, 10**400, 0)], "line 1: .*input_length"),
            ([row(0, 1, 0, 2**64)], "line 1: a block id has more than 64 bits"),
            (['{"x": ' + "[" * 100_000], "line 1: .*recursion"),
        ],
    )
    def test_what_is_wrong_is_named(self, lines: list[str], words: str) -> None:
        with pytest.raises(TraceError, match=words):
            list(read_mooncake(lines))

    def test_times_count_from_the_first_row(self) -> None:
        since_1970 = [row(1_700_000_000_000 + at, 400, 0) for at in (0, 3000)]
        assert [r.at_ms // 3000 for r in read_mooncake(since_1970)] == [0, 1]

    def test_the_block_size_is_told_by_the_row_of_the_most_ids(self) -> None:
        short_first = [row(0, 200, 0), row(0, 1500, 0, 1, 2), row(0, 9000, 0)]
        assert {r.block_tokens for r in read_mooncake(short_first)} == {512}
        alike = [row(0, 6, 0), row(0, 500, 1), row(0, 40, 2)]
        assert {r.block_tokens for r in read_mooncake(alike)} == {512}, "of several the longest"

    def test_a_scale_must_divide_the_block(self) -> None:
        with pytest.raises(TraceError, match="scale 3"):
            list(read_mooncake(MOONCAKE, scale=3))


class TestAgentSessions:
    def read(self, *sessions: dict[str, Any], **options: Any) -> list[TraceRequest]:
        return list(read_agent_sessions(map(json.dumps, sessions), AgentOptions(**options)))

    def test_a_session_is_a_chain_with_think_times(self) -> None:
        trace = self.read(SESSION)
        main = [r for r in trace if r.session == "t1"]
        assert [r.prompt_tokens for r in main] == [640, 1280, 1300]
        assert main[0].after is None
        assert main[2].after == trace.index(main[1])

    def test_long_gaps_are_cut(self) -> None:
        assert self.read(SESSION, max_gap_s=60.0)[-1].think_ms == 60_000.0

    def test_a_sub_agent_that_had_finished_is_waited_for(self) -> None:
        trace = self.read(SESSION)
        sub = [r for r in trace if r.session == "t1/1"]
        assert [r.after for r in sub] == [0, 1]
        # Its end, 8 + 3 s, lies before the parent's next call at 20 s.
        main = [r for r in trace if r.session == "t1"][1]
        assert (main.after, main.think_ms) == (2, 9_000.0)

    def test_a_sub_agent_still_running_is_not(self) -> None:
        late = SESSION | {"requests": [*SESSION["requests"]]}
        late["requests"][1] = SESSION["requests"][1] | {"t": 18.0}
        main = [r for r in self.read(late) if r.session == "t1"][1]
        assert (main.after, main.think_ms) == (0, 15_000.0)

    def test_ids_are_apart_between_sessions_but_for_the_common_prefix(self) -> None:
        trace = self.read(SESSION, SESSION | {"id": "t2"}, shared_prefix_share=0.75)
        a, b = trace[0], trace[5]
        # 0.75 x 256 prefix tokens = 3 whole blocks of 64.
        assert a.block_ids[:3] == b.block_ids[:3]
        assert not set(a.block_ids[3:]) & set(b.block_ids[3:])

    def test_ids_agree_inside_a_session(self) -> None:
        main = [r for r in self.read(SESSION) if r.session == "t1"]
        assert main[0].block_ids[:8] == main[1].block_ids[:8]
        assert main[0].block_ids[8] != main[1].block_ids[8]

    def test_scale_divides_lengths_and_keeps_the_ids(self) -> None:
        first = self.read(SESSION, scale=8)[0]
        assert (first.prompt_tokens, first.output_tokens, first.block_tokens) == (80, 10, 8)
        assert len(first.block_ids) == 10

    def test_a_session_stops_before_a_prompt_that_does_not_fit(self) -> None:
        assert [r.prompt_tokens for r in self.read(SESSION, max_prompt_tokens=1280)][-1] == 1280

    def test_sessions_are_taken_from_a_range(self) -> None:
        many = [SESSION | {"id": f"t{i}"} for i in range(5)]
        assert {r.user for r in self.read(*many, skip_sessions=1, sessions=2)} == {"t1", "t2"}

    def test_what_is_wrong_is_named(self) -> None:
        with pytest.raises(TraceError, match="line 1"):
            list(read_agent_sessions(['{"id": "x"}']))

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"block": 0}, "block"),
            ({"requests": [[0.0, 640, 80, 5.0, 0.0, [1, 10, 12]]]}, "12 begins a range"),
        ],
    )
    def test_a_session_that_makes_no_sense_is_named(self, wrong: dict[str, Any], words: str) -> None:
        with pytest.raises(TraceError, match=f"line 2: .*{words}"):
            self.read(SESSION, SESSION | wrong)


class TestOrderAndSelection:
    def test_time_order_repoints_waiting(self) -> None:
        ordered = in_time_order([request(0), request(900, after=0), request(5), request(6, after=2)])
        assert [(r.at_ms, r.after) for r in ordered] == [(0, None), (5, None), (6, 1), (900, 0)]

    def test_nobody_waits_for_the_future(self) -> None:
        with pytest.raises(TraceError):
            in_time_order([request(10), request(5, after=0)])

    def test_a_follower_of_a_dropped_request_waits_for_the_one_before(self) -> None:
        trace = [request(0), request(1, 0, 10.0, tokens=999), request(2, 1, 20.0), request(9, 2, 5.0)]
        kept = select(trace, max_prompt_tokens=500, until_ms=9)
        assert [(r.after, r.think_ms) for r in kept] == [(None, 0.0), (0, 30.0)]

    def test_a_follower_of_nothing_starts_its_session(self) -> None:
        kept = select([request(0, tokens=999), request(5, 0, 10.0)], max_prompt_tokens=500)
        assert [(r.at_ms, r.after, r.think_ms) for r in kept] == [(5, None, 0.0)]


class TestFiles:
    def test_a_damaged_archive_is_told(self, tmp_path: Path) -> None:
        packed = bytearray(gzip.compress("\n".join(MOONCAKE * 100).encode()))
        packed[20:40] = b"\xff" * 20
        (tmp_path / "t.jsonl.gz").write_bytes(packed)
        with pytest.raises(TraceError, match=r"t\.jsonl\.gz: "):
            load_trace(tmp_path / "t.jsonl.gz")

    @pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
    def test_canonical_records_survive_a_file(self, tmp_path: Path, name: str) -> None:
        trace = (request(0), request(5, 0, 2.5))
        save_trace(tmp_path / name, trace)
        assert load_trace(tmp_path / name) == trace
        first = (tmp_path / name).read_bytes()
        save_trace(tmp_path / name, trace)
        assert (tmp_path / name).read_bytes() == first

    def test_the_format_is_told_by_its_keys(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(gzip.compress("\n".join(MOONCAKE).encode()))
        assert len(load_trace(tmp_path / "a", seed=1)) == 5
        (tmp_path / "b").write_text(json.dumps(SESSION))
        assert len(load_trace(tmp_path / "b", scale=8)) == 5

    @pytest.mark.parametrize(
        ("content", "words"), [(b"", "empty"), (b'{"x": 1}', r"unknown format.*\['x'\]"), (b"\xff", "utf-8")]
    )
    def test_other_files_are_refused_with_words(self, tmp_path: Path, content: bytes, words: str) -> None:
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(TraceError, match=words):
            load_trace(tmp_path / "t")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="nowhere: No such file"):
            load_trace(tmp_path / "nowhere")

    def test_a_byte_order_mark_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "t").write_text("\n".join(MOONCAKE), encoding="utf-8-sig")
        assert len(load_trace(tmp_path / "t")) == 5
        (tmp_path / "t").write_text("".join(TestAzure.ROWS), encoding="utf-8-sig")
        assert len(load_trace(tmp_path / "t")) == 2

    @pytest.mark.parametrize(
        "trace", [(request(0), request(1e18)), (request(10), request(5, 0)), (request(0, tokens=-5),)]
    )
    def test_the_file_of_a_trace_that_makes_no_sense_is_named(
        self, trace: tuple[TraceRequest, ...], tmp_path: Path
    ) -> None:
        save_trace(tmp_path / "t", trace)
        with pytest.raises(TraceError, match=f"^{tmp_path / 't'}: "):
            load_trace(tmp_path / "t")

    @pytest.mark.parametrize(
        "wrong", [{"block_tokens": 32}, {"at_ms": -1.0}, {"think_ms": -1.0}, {"block_ids": (2**64,)}]
    )
    def test_a_record_that_makes_no_sense_is_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(TraceError, match="line 2"):
            list(read_canonical(dump([request(0), replace(request(1), **wrong)])))

    def test_a_record_cannot_wait_for_the_future(self) -> None:
        with pytest.raises(TraceError, match="line 1"):
            list(read_canonical(dump([request(0, after=0)])))


class TestAzure:
    ROWS = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "2023-11-16 18:15:46.6805900,374,44\n",
        "2023-11-16 18:15:50.9951690,396,0\n",
    )

    def test_times_count_from_the_first_row_and_nothing_is_shared(self, tmp_path: Path) -> None:
        path = tmp_path / "azure.csv"
        path.write_text("".join(self.ROWS))
        first, second = load_trace(path)
        assert (first.at_ms, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
        assert second.at_ms == pytest.approx(4314.579)
        assert second.output_tokens == 1
        assert first.session != second.session
        assert (first.block_ids, second.block_ids) == ((), ())

    @pytest.mark.parametrize(
        "row",
        [
            "2023-11-16 18:15:40.0,1,1",
            "2023-11-16 18:15:59.0+00:00,1,1",
            "2023-11-16 18:15:59.0,1",
            "now,1,1",
        ],
    )
    def test_a_row_that_does_not_fit_is_named(self, row: str, tmp_path: Path) -> None:
        path = tmp_path / "azure.csv"
        path.write_text("".join((*self.ROWS, row)))
        with pytest.raises(TraceError, match=r"azure\.csv: line 4"):
            load_trace(path)
