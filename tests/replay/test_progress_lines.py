"""Progress for pipes and files: what is done, what is left, and that something is said without news."""

from __future__ import annotations

import io
import threading

import pytest

from epp.replay.console import progress
from epp.replay.progress_lines import ProgressLines


class Clock:
    """Seconds that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("done", "gone_s", "line"),
    [
        (0, 29.7, "runs: 0 of 80 done after 30 s"),
        (20, 60.0, "runs: 20 of 80 done after 1 min 0 s, about 3 min 0 s left"),
        (1, 100.0, "runs: 1 of 80 done after 1 min 40 s, about 2 h 11 min left"),
        (80, 4000.0, "runs: 80 of 80 done after 1 h 6 min"),
    ],
)
def test_a_line_says_what_is_done_and_what_is_left(done: int, gone_s: float, line: str) -> None:
    clock = Clock()
    lines = ProgressLines(lambda _: None, clock=clock)
    lines("runs", 0, 80)
    clock.now_s += gone_s
    lines("runs", done, 80)
    assert lines.line() == line


def test_the_next_part_has_a_time_of_its_own() -> None:
    clock = Clock()
    lines = ProgressLines(lambda _: None, clock=clock)
    assert lines.line() == "0 s so far"
    lines("tuning", 4, 4)
    clock.now_s += 50.0
    lines("runs", 1, 2)
    clock.now_s += 10.0
    assert lines.line() == "runs: 1 of 2 done after 10 s, about 10 s left"


def test_it_speaks_without_news_and_stops() -> None:
    said: list[str] = []
    twice = threading.Event()

    def write(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with ProgressLines(write, every_s=0.001):
        assert twice.wait(60.0)
    count = len(said)
    assert count >= 2
    assert not any(thread.name == "progress" for thread in threading.enumerate())
    assert len(said) == count


def test_what_is_no_terminal_gets_lines_and_a_short_run_none() -> None:
    out = io.StringIO()
    with progress(out) as step:
        step("runs", 1, 2)
        assert isinstance(step, ProgressLines)
    assert not out.getvalue()
