"""Pages with charts: what is drawn, what a pointer shows, and whose code draws it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from html import unescape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from epp_lab.origin import origin
from epp_lab.page import page
from epp_lab.plot import Panel, figure
from tests.kit.browser import chromium

if TYPE_CHECKING:
    from pathlib import Path


def drawn(text: str) -> list[dict[str, Any]]:
    return [json.loads(unescape(found)) for found in re.findall(r'data-chart="([^"]*)"', text)]


def test_a_series_has_one_color_in_all_charts_and_what_is_not_finite_is_left_out() -> None:
    first = Panel("<1>", "x", "y", {"a < b": [(4.0, 1.0), (1.0, 0.0)], "lost": [(1.0, math.nan)]})
    second = Panel("2", "x", "y", {"lost": [(3.0, 2.0)]})
    one, two = drawn(figure("", [first, second]))
    assert one["series"] == [
        {"name": "a < b", "color": 0, "points": [[1.0, 4.0], [0.0, 1.0]]},
        {"name": "lost", "color": 1, "points": [[], []]},
    ]
    assert two["series"] == [{"name": "lost", "color": 1, "points": [[3.0], [2.0]]}]


def test_bars_of_one_place_stand_side_by_side() -> None:
    (chart,) = drawn(figure("", [Panel("", "x", "y", {"a": [(0, 1)], "b": [(0, 2)]}, drawn="bars")]))
    (left,), (right,) = (series["points"][0] for series in chart["series"])
    assert -0.5 < left < right < 0.5
    assert left == -right


async def test_a_page_draws_its_charts_offline_and_says_values_under_the_pointer(tmp_path: Path) -> None:
    panel = Panel("spread", "percentile", "ms", {"me": [(0, 10), (1, 20)]}, {0: "p0", 1: "p50"}, [0, 1])
    file = tmp_path / "page.html"
    file.write_text(page("title", origin(), figure("load", [panel]), verdict=["me is the lowest"]))
    async with chromium(tmp_path) as browser:
        await browser.open(file.as_uri())
        await browser.until("document.querySelectorAll('canvas').length === 1")
        # The plot area tells where the last point is; uPlot waits for the browser's next frame.
        await browser.look(
            "(() => { const over = document.querySelector('.u-over'), box = over.getBoundingClientRect();"
            "for (const type of ['mouseenter', 'mousemove']) over.dispatchEvent("
            "new MouseEvent(type, { clientX: box.right - 20, clientY: box.top + 9, bubbles: true })) })()"
        )
        await browser.until("document.querySelector('.u-legend').innerText.match(/p50[^]*me[^]*20/) !== null")
        dark = "getComputedStyle(document.body).backgroundColor"
        light_color = await browser.look(dark)
        await browser.dark(on=True)
        assert await browser.look(dark) != light_color


def test_the_chart_library_is_the_one_that_was_published() -> None:
    folder = files("epp_lab") / "vendor" / "uplot"
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
