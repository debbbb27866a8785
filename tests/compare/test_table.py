"""What people read: the right figures in the right rows."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from epp.lab.compare.stats import summarise
from epp.lab.compare.table import LiveState, PolicyRun, comparison_table, live_table
from tests.compare.test_stats import result

if TYPE_CHECKING:
    from rich.console import RenderableType


def shown(renderable: RenderableType, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.strip("│ ┃").startswith(start))


def state() -> LiveState:
    live = LiveState("gorgo", total=10, regions={"a:1": "Ashburn", "f:1": "Frankfurt", "s:1": "Seoul"})
    for index in range(6):
        live.sent(index)
    for index, by in enumerate(["a:1", "a:1", "a:1", "f:1"]):
        live.result(result(index, 2000.0, served_by=by, cached_tokens=750, prompt_tokens=1000))
    live.result(result(4, error="HTTP 503: no room", ttft_ms=None))
    return live


def test_the_live_table_counts_and_shares() -> None:
    text = shown(live_table(state()))
    assert "gorgo: 5 of 10 answered, 1 in flight" in text
    assert "75 %" in line(text, "Ashburn")
    assert "1.00 s" in line(text, "Ashburn")
    assert "2.00 s" in line(text, "Frankfurt")
    assert "0 %" in line(text, "Seoul")
    assert "4" in line(text, "all")
    assert "1 failed, last: HTTP 503: no room" in text


def test_the_live_table_is_whole_in_a_terminal_of_80_columns() -> None:
    live = state()
    for index, by in enumerate(["a:1", "f:1", "s:1"] * 300):
        live.result(result(index, 331.0, served_by=by, cached_tokens=750, prompt_tokens=1000))
    text = shown(live_table(live), width=80)
    assert "…" not in text
    for name, share in (("Ashburn", "34 %"), ("Frankfurt", "33 %"), ("Seoul", "33 %"), ("all", "100 %")):
        assert share in line(text, name)
        assert line(text, name).count(" ms") + line(text, name).count(" s") == 4


def test_an_empty_run_has_a_table_too() -> None:
    text = shown(live_table(LiveState("gorgo", regions={"a:1": "Ashburn"})))
    assert "0 answered, 0 in flight" in text
    assert "nan" not in text


def test_brackets_in_an_error_are_text() -> None:
    live = LiveState("gorgo")
    live.result(result(0, error="[bold]x[/]"))
    assert "[bold]x[/]" in shown(live_table(live))


def test_rendering_changes_nothing() -> None:
    live = state()
    assert shown(live_table(live)) == shown(live_table(live))


def test_policies_stand_side_by_side_with_intervals() -> None:
    summary = summarise([result(i, 500.0, served_by="a:1") for i in range(40)], {"a:1": "Ashburn"})
    runs = [PolicyRun("gorgo", summary, (200.0, 300.0), (400.0, 1600.0)), PolicyRun("random", summary)]
    text = shown(comparison_table(runs))
    assert "500 ms [400 ms, 1.60 s]" in line(text, "E2E p95")
    assert line(text, "requests (failed)").count("40 (0)") == 2
    assert "100 %" in line(text, "Ashburn")
