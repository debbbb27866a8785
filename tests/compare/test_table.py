"""What people read: the right figures in the right rows."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from epp.lab.compare.stats import summarise
from epp.lab.compare.table import PolicyRun, comparison_table
from tests.compare.test_stats import result

if TYPE_CHECKING:
    from rich.console import RenderableType


def shown(renderable: RenderableType, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.strip("│ ┃").startswith(start))


def test_policies_stand_side_by_side_with_intervals() -> None:
    summary = summarise([result(i, 500.0, served_by="a:1") for i in range(40)], {"a:1": "Ashburn"})
    runs = [PolicyRun("gorgo", summary, (200.0, 300.0), (400.0, 1600.0)), PolicyRun("random", summary)]
    text = shown(comparison_table(runs))
    assert "500 ms [400 ms, 1.60 s]" in line(text, "E2E p95")
    assert line(text, "requests (failed)").count("40 (0)") == 2
    assert "100 %" in line(text, "Ashburn")
