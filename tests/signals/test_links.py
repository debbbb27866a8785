"""What is on the way between endpoints, and what a token takes."""

from __future__ import annotations

import numpy as np
import pytest

from epp.signals.links import Links, token_ms
from epp.signals.metrics_text import EngineSample, parse_metrics
from epp.types import BACKLOG_MS, TOKEN_MS

BOTH = np.array([0, 1])


def links() -> Links:
    made = Links()
    made.resize(2)
    return made


def test_a_token_of_128_kib_takes_ten_microseconds_at_100_gbps() -> None:
    assert token_ms(131_072, 100.0) == pytest.approx(0.01048576)


def test_what_is_sent_waits_at_both_ends_until_it_has_arrived() -> None:
    known = links()
    known.reserve("a", (0, 1), 1000.0)
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == pytest.approx([10.48576, 10.48576])
    known.end("a")
    known.end("a")
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == [0.0, 0.0]


def test_an_endpoint_that_is_forgotten_takes_nothing_from_the_other_end() -> None:
    known = links()
    known.reserve("a", (0, 1), 1000.0)
    known.forget(0)
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == pytest.approx([0.0, 10.48576])
    known.end("a")
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == [0.0, 0.0]


def test_the_time_of_a_token_is_learned_from_what_engines_tell_of_their_transfers() -> None:
    known = links()
    page = 'vllm:num_requests_running 1\nvllm:nixl_xfer_time_seconds_sum{engine="0"} %g\n'
    known.observe(1, parse_metrics((page % 2.0).encode()), 0.0)
    known.reserve("a", (0, 1), 20_000.0)
    known.end("a")
    known.observe(1, parse_metrics((page % 3.0).encode()), 1.0)
    assert known.columns(BOTH)[TOKEN_MS].tolist() == pytest.approx([0.05, 0.05])
    known.observe(1, EngineSample(transfer_s_total=9.0), 2.0)
    assert known.token_ms == pytest.approx(0.05), "nothing of ours has arrived since"


def test_sglang_tells_its_role() -> None:
    page = b'sglang:num_running_reqs{engine_type="prefill",tp_rank="0"} 1\n'
    assert parse_metrics(page).role == "prefill"
    assert parse_metrics(b"vllm:num_requests_running 1\n").role == ""
