"""The flame graph's drawing: functions put together, narrow boxes left out, names that cannot break the file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tools.flame import draw, folded, main

if TYPE_CHECKING:
    from pathlib import Path

FOLDED = """\
thread: Main;run (a.py:1);work (epp/a.py:3);<inner> (epp/b.py:9) 600
thread: Main;run (a.py:2);work (epp/a.py:5) 300
thread: Main;run (a.py:2);rest (c.py:5) 99
thread: Main;run (a.py:2);hair (c.py:7) 1
thread: Other;wait (d.py:1) 500
"""


def titles(drawn: str) -> list[str]:
    elements = ET.fromstring(drawn).iter()  # noqa: S314  # what was just drawn
    return [element.text or "" for element in elements if element.tag.endswith("title")]


def test_shares_are_of_all_samples_where_a_frame_at_the_root_has_some_of_its_own() -> None:
    stacks = "Main;run;work;rest;wait 50\nMain;run;work;rest;look 10\nMain;run 40\n"
    assert titles(draw(folded(stacks, "Main"), "")) == [
        "work: 60.0%",
        "rest: 60.0%",
        "wait: 50.0%",
        "look: 10.0%",
    ]


def test_a_text_that_no_stack_holds_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folded, picture = tmp_path / "folded", tmp_path / "out.svg"
    folded.write_text(FOLDED)
    monkeypatch.setattr(sys, "argv", ["flame", str(folded), str(picture), "--only", "MainThread"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no stack with 'MainThread' in it" in capsys.readouterr().err
    assert not picture.exists()


def test_a_picture_shows_shares_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded, picture = tmp_path / "folded", tmp_path / "out.svg"
    folded.write_text(FOLDED)
    monkeypatch.setattr(sys, "argv", ["flame", str(folded), str(picture), "--only", "Main", "--title", "a<b"])
    main()
    text = set(titles(picture.read_text()))
    assert {"work (epp/a.py): 90.0%", "<inner> (epp/b.py): 60.0%", "rest (c.py): 9.9%"} <= text
    assert not any("hair" in line or "wait" in line for line in text)
