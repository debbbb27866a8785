"""What a long command says beside a terminal."""

from __future__ import annotations

import io

from epp_lab.progress import progress


def test_time_left_is_told_every_half_minute_and_what_is_found_at_once() -> None:
    now_s, stream = 0.0, io.StringIO()
    with progress(stream, time_s=lambda: now_s) as step:
        step("runs", 0, 10)
        now_s = 20.0
        step("runs", 1, 10, "the first")
        assert stream.getvalue() == "the first\n"
        now_s = 40.0
        step("runs", 2, 10)
    assert stream.getvalue() == "the first\nruns: 2 of 10 done, about 3 min left\n"
