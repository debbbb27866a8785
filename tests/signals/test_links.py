"""What is on the way between endpoints, and what a token takes."""

from __future__ import annotations

import numpy as np
import pytest

from epp.signals.links import Links, token_ms
from epp.signals.metrics_text import parse_metrics
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
    known.end("a", arrived=True)
    known.end("a", arrived=True)
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == [0.0, 0.0]


def test_an_endpoint_that_is_forgotten_takes_nothing_from_the_other_end() -> None:
    known = links()
    known.reserve("a", (0, 1), 1000.0)
    known.forget(0)
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == pytest.approx([0.0, 10.48576])
    known.end("a", arrived=True)
    assert known.columns(BOTH)[BACKLOG_MS].tolist() == [0.0, 0.0]


PAGE = """vllm:num_requests_running 1
vllm:nixl_xfer_time_seconds_sum{engine="0"} %g
vllm:nixl_xfer_time_seconds_count{engine="0"} %g
"""


def test_the_time_of_a_token_is_learned_from_what_engines_tell_of_their_transfers() -> None:
    known = links()
    known.observe(1, parse_metrics((PAGE % (2.0, 3)).encode()), 0.0)
    known.reserve("a", (0, 1), 20_000.0)
    known.end("a", arrived=True)
    known.observe(1, parse_metrics((PAGE % (3.0, 4)).encode()), 1.0)
    assert known.columns(BOTH)[TOKEN_MS].tolist() == pytest.approx([0.05, 0.05])
    known.observe(1, parse_metrics((PAGE % (9.0, 5)).encode()), 2.0)
    assert known.token_ms == pytest.approx(0.05), "nothing of ours has arrived since"


def test_transfers_of_other_pickers_and_of_each_gpu_do_not_lengthen_ours() -> None:
    known = links()
    known.observe(1, parse_metrics((PAGE % (2.0, 3)).encode()), 0.0)
    for key in ("a", "failed"):
        known.reserve(key, (0, 1), 20_000.0)
    known.end("a", arrived=True)
    known.end("failed", arrived=False)
    known.observe(1, parse_metrics((PAGE % (2.0 + 8.0, 3 + 8)).encode()), 1.0)  # 2 pickers, 4 GPUs
    assert known.token_ms == pytest.approx(0.05)


def test_sglang_tells_its_role() -> None:
    page = b'sglang:num_running_reqs{engine_type="prefill",tp_rank="0"} 1\n'
    assert parse_metrics(page).role == "prefill"
    assert parse_metrics(b"vllm:num_requests_running 1\n").role == ""
