"""The flame graph's drawing: functions put together, narrow boxes left out, names that cannot break the file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tools.flame import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FOLDED = """\
thread: Main;run (a.py:1);work (epp/a.py:3);<inner> (epp/b.py:9) 600
thread: Main;run (a.py:2);work (epp/a.py:5) 300
thread: Main;run (a.py:2);rest (c.py:5) 99
thread: Main;run (a.py:2);hair (c.py:7) 1
thread: Other;wait (d.py:1) 500
"""


def test_a_picture_shows_shares_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded, picture = tmp_path / "folded", tmp_path / "out.svg"
    folded.write_text(FOLDED)
    monkeypatch.setattr(sys, "argv", ["flame", str(folded), str(picture), "--only", "Main", "--title", "a<b"])
    main()
    drawn = ET.fromstring(picture.read_text())  # noqa: S314  # what was just drawn
    text = {element.text for element in drawn.iter() if element.tag.endswith("title")}
    assert {"work (epp/a.py): 90.0%", "<inner> (epp/b.py): 60.0%", "rest (c.py): 9.9%"} <= text
    assert not any("hair" in (line or "") or "wait" in (line or "") for line in text)
