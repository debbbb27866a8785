"""Public formats become canonical records; lengths, sharing and waiting survive. What a trace is like."""

from __future__ import annotations

import gzip
import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.records.files import file_name
from epp_lab.compare.files import DEFAULT_OUTPUT_TOKENS, load_trace, read_flight_records, read_mooncake
from epp_lab.compare.plan import TUNING_SHARE, Source, part_of
from epp_lab.compare.trace import TraceError, TraceRequest, in_time_order, select
from epp_lab.compare.trace_stats import cached_tokens, describe, reuse_share, session_gaps
from epp_lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def row(timestamp: int, tokens: int, *ids: int | str, **names: object) -> str:
    figures = {"timestamp": timestamp, "input_length": tokens, "output_length": 40, "hash_ids": list(ids)}
    return json.dumps(figures | names)


def request(at_ms: float, after: int | None = None, think_ms: float = 0.0, tokens: int = 100) -> TraceRequest:
    return TraceRequest(at_ms, "s", "u", tokens, 10, (1, 2), 64, after, think_ms)


def save(path: Path, trace: Sequence[TraceRequest]) -> Path:
    path.write_bytes(msgspec.json.Encoder().encode_lines(trace))
    return path


MOONCAKE = [
    row(0, 700, 0, 1),
    row(0, 513, 0, 2),
    row(0, 900, 0, 1, 3),
    row(3000, 400, 0),
    row(3000, 512, 9, 9),
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,0\n"
)


class TestMooncake:
    def test_rows_on_ticks_spread_within_theirs_and_keep_their_order(self) -> None:
        trace = list(read_mooncake(MOONCAKE, seed=3, tick_ms=3000.0))
        assert [r.prompt_tokens for r in trace] == [700, 513, 900, 400, 512]
        assert [r.at_ms // 3000 for r in trace] == [0, 0, 0, 1, 1]
        times = [r.at_ms for r in trace]
        assert times == sorted(set(times))
        other = list(read_mooncake(MOONCAKE, seed=4, tick_ms=3000.0))
        assert trace == list(read_mooncake(MOONCAKE, seed=3, tick_ms=3000.0)) != other

    @pytest.mark.parametrize(
        ("times", "spread"),
        [
            # As in the published trace: a tick may be some milliseconds early or late.
            ([max(0, 3000 * (i // 9) - (i // 9) % 3) for i in range(180)], True),
            ([3000 * (i // 300) for i in range(1000)], True),  # a busy one: four ticks in the rows looked at
            ([137 * i + i % 7 for i in range(180)], False),  # milliseconds
            ([1000 * i for i in range(180)], False),  # one a second: nobody shares a time
            ([0, 0, 3000, 3000], False),  # too few to say
        ],
    )
    def test_times_are_kept_unless_they_stand_on_ticks(self, times: list[int], spread: bool) -> None:
        found = [r.at_ms for r in read_mooncake([row(at, 600, 0, i) for i, at in enumerate(times)])]
        assert (found != [at - times[0] for at in times]) == spread

    def test_rows_keep_their_users_and_share_sessions_within_them(self) -> None:
        names: list[dict[str, object]] = [
            {"token_hash": "ada", "session_id": None},
            {"token_hash": "bob"},
            {"token_hash": "ada"},
            {"user_id": 7, "session_id": "s"},
            {"session_id": "t", "token_hash": ""},
        ]
        ids = ("9c9f", "5aed")
        trace = list(read_mooncake([row(10 * i, 400, *ids, **of) for i, of in enumerate(names)]))
        assert [r.user for r in trace] == ["ada", "bob", "ada", "7", "t"]
        assert trace[0].session == trace[2].session != trace[1].session
        assert [r.session for r in trace[3:]] == ["s", "t"]
        assert len({r.block_ids for r in trace}) == 1

    def test_the_block_size_is_that_of_the_row_of_the_most_ids(self) -> None:
        rows = [row(0, 200, 0), row(0, 1500, 0, 1, 2), row(0, 9000, 0)]
        assert {r.block_tokens for r in read_mooncake(rows)} == {512}


class TestFlightRecords:
    def decision(self, name: str, at: float, tokens: int = 600, **more: Any) -> dict[str, Any]:
        asked = {"prompt_tokens": tokens, "max_output_tokens": None, "affinity_key": ""}
        asked |= more.pop("request", {})
        return {"schema": 2, "kind": "decision", "id": name, "at": at, "request": asked} | more

    def test_times_lengths_sessions_and_blocks_are_those_recorded(self) -> None:
        first, other, second = read_flight_records(
            [
                self.decision("a", 100.0, session="s1", blocks=["x", "y"], block_tokens=255.6),
                self.decision("b", 101.5, session="s1", blocks=["x", "y", "z"], block_tokens=256.4),
                {"kind": "outcome", "id": "b", "completion_tokens": 77, "prompt_tokens": 800},
                self.decision("c", 101.0, request={"max_output_tokens": 40, "affinity_key": "k"}),
                self.decision("without a prompt", 102.0, tokens=0),
            ]
        )
        assert [r.at_ms for r in (first, other, second)] == [0.0, 1000.0, 1500.0]
        assert (first.session, other.session, second.session) == ("s1", "k", "s1")
        assert second.block_ids[:2] == first.block_ids
        assert second.block_tokens == 256
        assert [r.output_tokens for r in (first, other, second)] == [DEFAULT_OUTPUT_TOKENS, 40, 77]
        assert (first.prompt_tokens, second.prompt_tokens) == (600, 800)

    def test_a_folder_of_the_recorder_is_read_and_so_is_one_file(self, tmp_path: Path) -> None:
        path = tmp_path / file_name(1000.0, compressed=False)
        lines = [json.dumps(self.decision("a", 1.0)), json.dumps(self.decision("b", 2.0)), '{"torn']
        path.write_text("\n".join(lines))
        assert len(load_trace(tmp_path)) == 2
        assert load_trace(path) == load_trace(tmp_path)

    def test_sessions_that_waited_for_answers_wait_again(self) -> None:
        def records(*at_s: float, e2e_ms: float | None = 900.0) -> list[dict[str, Any]]:
            decisions = [self.decision(f"{at}", at, session="s") for at in at_s]
            return decisions + [{"kind": "outcome", "id": d["id"], "e2e_ms": e2e_ms} for d in decisions]

        def waits(trace: Sequence[TraceRequest]) -> list[tuple[int | None, float]]:
            return [(r.after, round(r.think_ms, 3)) for r in trace]

        assert waits(read_flight_records(records(0.0, 1.0, 4.0))) == [(None, 0.0), (0, 100.0), (1, 2100.0)]
        # Most do not wait: its load comes at its own times.
        assert waits(read_flight_records(records(0.0, 0.5, 1.0, 4.0))) == [(None, 0.0)] * 4
        assert waits(read_flight_records(records(0.0, 1.0, e2e_ms=None))) == [(None, 0.0)] * 2


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "requests"),
        [
            (gzip.compress("\n".join(MOONCAKE).encode()), 5),
            ("\n".join(MOONCAKE).encode("utf-8-sig"), 5),
            (AZURE.encode(), 2),
            (msgspec.json.Encoder().encode_lines([request(0), request(5, 0, 2.5)]), 2),
        ],
    )
    def test_the_format_is_known_by_its_first_line(
        self, content: bytes, requests: int, tmp_path: Path
    ) -> None:
        (tmp_path / "t").write_bytes(content)
        trace = load_trace(tmp_path / "t")
        assert len(trace) == requests
        assert [r.at_ms for r in trace] == sorted(r.at_ms for r in trace)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b'{"x": 1}', r"unknown format.*\['x'\]"),
            (b"PAR1\x15", "write its rows as JSONL"),
            (
                b"time,prompt,answer\n0,10,5\n",
                "line 1 is neither a JSON object nor the header of Azure's CSV",
            ),
            ((AZURE + "now,1,1\n").encode(), "line 4"),
            (MOONCAKE[0].encode() + b"\n{", "line 2"),
            (row(0, 1, 0).encode() + b"\n" + row(10**15, 1, 0).encode(), "milliseconds"),
            (msgspec.json.Encoder().encode_lines([request(0, after=0)]), "line 1: waits for request 0"),
        ],
    )
    def test_what_is_wrong_is_named(self, content: bytes, words: str, tmp_path: Path) -> None:
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(TraceError, match=rf"^{tmp_path / 't'}: .*{words}"):
            load_trace(tmp_path / "t")

    @pytest.mark.parametrize(
        ("content", "kept"),
        [
            ("\n".join(row(1000 + 500 * i, 600, 0, i) for i in range(9)).encode(), [0.0, 500.0]),
            (AZURE.encode(), []),
            (msgspec.json.Encoder().encode_lines([request(1500), request(2600, 0, 9.0)]), [500.0]),
        ],
    )
    def test_a_window_counts_from_its_start(self, content: bytes, kept: list[float], tmp_path: Path) -> None:
        (tmp_path / "t").write_bytes(content)
        trace = load_trace(tmp_path / "t", from_s=1.0, seconds=1.0)
        assert [(r.at_ms, r.after) for r in trace] == [(at_ms, None) for at_ms in kept]
        with pytest.raises(TraceError, match=r"the window starts at 60 s, and the trace ends at \d"):
            load_trace(tmp_path / "t", from_s=60.0)


class TestOrderAndSelection:
    def test_time_order_repoints_waiting(self) -> None:
        ordered = in_time_order([request(0), request(900, after=0), request(5), request(6, after=2)])
        assert [(r.at_ms, r.after) for r in ordered] == [(0, None), (5, None), (6, 1), (900, 0)]
        with pytest.raises(TraceError):
            in_time_order([request(10), request(5, after=0)])

    def test_a_follower_of_a_dropped_request_waits_for_the_one_before(self) -> None:
        trace = [request(0), request(1, 0, 10.0, tokens=999), request(2, 1, 20.0), request(9, 2, 5.0)]
        kept = select(trace, max_prompt_tokens=500, until_ms=9)
        assert [(r.after, r.think_ms) for r in kept] == [(None, 0.0), (0, 30.0)]
        kept = select([request(0, tokens=999), request(5, 0, 10.0)], max_prompt_tokens=500)
        assert [(r.at_ms, r.after, r.think_ms) for r in kept] == [(5, None, 0.0)]

    def test_an_open_loop_trace_is_cut_in_time_to_be_tuned_on(self) -> None:
        trace = tuple(request(i * 1000.0) for i in range(91))
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
            assert all(r.after is None or part[r.after].session == r.session for r in part)

    def test_a_trace_is_limited(self, tmp_path: Path) -> None:
        path = str(save(tmp_path / "t", [request(0.0), request(10.0, tokens=30_000), request(5_000.0)]))
        assert len(Source(trace=path).requests(1)) == 2
        assert len(Source(trace=path, max_prompt_tokens=0).requests(1)) == 3
        assert len(Source(trace=path, until_s=1.0).requests(1)) == 1
        assert len(Source(trace=path, from_s=1.0).requests(1)) == 1


def one(*ids: int, at_ms: float = 0.0, session: str = "s", tokens: int = 0, user: str = "u") -> TraceRequest:
    return TraceRequest(at_ms, session, user, tokens or 10 * len(ids), 1, ids, 10)


class TestReuse:
    def test_it_counts_partial_blocks_and_tells_users_apart(self) -> None:
        trace = [one(1, 2, tokens=15), one(1, 2, 3, tokens=25), one(1, 2, 4, tokens=25, user="b")]
        trace += [one(1, 2, tokens=18, user="b"), one(9, tokens=9)]
        assert cached_tokens(trace) == [0, 15, 20, 18, 0]
        assert cached_tokens(trace, by_user=True) == [0, 15, 0, 18, 0]

    @given(
        st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (4,), (4, 5), (1, 6)]), min_size=1, max_size=30)
    )
    def test_a_cache_with_room_for_all_gives_unlimited_reuse(self, prompts: list[tuple[int, ...]]) -> None:
        trace = [one(*ids) for ids in prompts]
        shares = [reuse_share(trace, capacity) for capacity in (10, 30, 1000)]
        assert 0.0 <= shares[0] <= 1.0
        assert max(shares) == shares[-1] == pytest.approx(describe(trace)["reuse_share"])

    def test_the_least_recently_used_goes_first_and_of_a_prefix_its_end(self) -> None:
        # Room for four blocks: (1 2 3) then (4 5) drops block 3, and 1 2 are found again.
        assert reuse_share([one(1, 2, 3), one(4, 5), one(1, 2, 3)], 40) == pytest.approx(20 / 80)
        assert reuse_share([one(1), one(2), one(1), one(3), one(1)], 20) == pytest.approx(20 / 50)

    def test_gaps_are_those_between_requests_of_a_session(self) -> None:
        trace = [one(1, session="a"), one(2, at_ms=500.0, session="b"), one(3, at_ms=2000.0, session="a")]
        gaps = session_gaps(trace)
        assert (gaps["p50_s"], gaps["turns_mean"], gaps["turns_max"]) == (2.0, 1.5, 2)
        assert math.isnan(session_gaps(trace[:1])["p50_s"])
