"""Charts: what is drawn where."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

from epp_lab.plot import Panel, figure


def test_points_lie_on_their_axes_and_what_is_not_finite_is_left_out() -> None:
    series = {"a < b": [(1024.0, 0.0), (4096.0, 1.0), (16_384.0, 2.0)], "lost": [(1024.0, math.nan)]}
    drawn = ET.fromstring(figure("", [Panel("", "x", "y", series)] * 3, columns=2, log_x=True))  # noqa: S314
    assert [c.findtext("title") for c in drawn.findall(".//{*}circle")][:2] == [
        "a < b: x 1024, y 0",
        "a < b: x 4096, y 1",
    ]
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in drawn.findall(".//{*}circle")]
    assert len(places) == 3 * 3
    (x0, y0), (x1, y1), (x2, y2) = places[:3]
    assert (x1 - x0, y0 - y1) == (x2 - x1, y1 - y2)  # steps of the logarithm, and upwards
    assert x1 > x0
    assert y1 < y0
    assert {text.text for text in drawn.iter("text")} >= {"● a < b", "1024", "2"}
    assert len({group.attrib["transform"] for group in drawn.findall("{*}g")}) == 3
