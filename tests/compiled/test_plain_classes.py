"""What is compiled says what the source says: dataclasses spelled out are the same values."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

import pytest

from tools.plain_classes import spelled_out

SOURCE = '''
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    kind: ClassVar[str] = "flat"
    x: int
    y: float = 2.5
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Right of here."""
        if self.x < 0:
            raise ValueError("left")

    @property
    def sum(self) -> float:
        return self.x + self.y


@dataclass(slots=True)
class Counter:
    at: Point
    count: int = 0
'''


def imported(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a module of this text; dataclasses look theirs up in modules that are imported."""
    module = ModuleType("written_here")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(text, module.__dict__)  # noqa: S102 - text of this file
    return module.__dict__


def test_values_are_made_compared_shown_and_replaced_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    given, plain = (imported(text, monkeypatch) for text in (SOURCE, spelled_out(SOURCE)))
    assert not plain["Point"].__dict__.get("__dataclass_params__")
    for space in (given, plain):
        point = space["Point"](1)
        assert (point.x, point.y, point.names, point.kind, point.sum) == (1, 2.5, [], "flat", 3.5)
        assert point.names is not space["Point"](1).names
        assert point == space["Point"](x=1, y=2.5)
        assert point != space["Point"](2)
        assert point != (1, 2.5, [])
        assert dataclasses.replace(point, x=7) == space["Point"](7)
        assert [one.name for one in dataclasses.fields(point)] == ["x", "y", "names"]
        with pytest.raises(ValueError, match="left"):
            space["Point"](-1)
        counter = space["Counter"](point)
        counter.count += 1
        assert counter == space["Counter"](at=point, count=1)
    assert repr(given["Counter"](given["Point"](1))) == repr(plain["Counter"](plain["Point"](1)))


def test_frozen_values_without_lists_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    key = "@dataclass(frozen=True, slots=True)\nclass Key:\n    a: int\n    b: str\n"
    space = imported(spelled_out(f"{text}\n{key}\nNAMES = Key.__slots__\n"), monkeypatch)
    assert list(space["NAMES"]) == ["a", "b"]
    assert {space["Key"](1, "x"): 5}[space["Key"](1, "x")] == 5


INHERITED = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True, slots=True)
class Below(Above):
    more: int = 5
    def __post_init__(self) -> None:
        Above.__post_init__(self)
"""
ABOVE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True, slots=True)
class Above:
    share: float = 0.5
    def __post_init__(self) -> None:
        if self.share > 1.0:
            raise ValueError("too much")
    def twice(self) -> float:
        return 2.0 * self.share
"""
IN_ONE = ABOVE + INHERITED.split("import dataclass")[1]


@pytest.mark.parametrize("imports", [False, True])
def test_what_inherits_from_a_dataclass_has_its_fields_first(
    monkeypatch: pytest.MonkeyPatch, *, imports: bool
) -> None:
    if imports:
        above = ModuleType("written_above")
        exec(spelled_out(ABOVE), above.__dict__)  # noqa: S102 - text of this file
        monkeypatch.setitem(sys.modules, above.__name__, above)
        text = INHERITED.replace("\n@data", "\nfrom written_above import Above\n@data", 1)
        space = imported(spelled_out(text, {"written_above": ABOVE}.__getitem__), monkeypatch)
    else:
        space = imported(spelled_out(IN_ONE), monkeypatch)
    below = space["Below"](0.25, 7)
    assert (below.share, below.more, below.twice()) == (0.25, 7, 0.5)
    assert [one.name for one in dataclasses.fields(below)] == ["share", "more"]
    assert dataclasses.replace(below, share=1.0) == space["Below"](1.0, 7)
    assert repr(below) == "Below(share=0.25, more=7)"
    assert space["Above"](0.25) != below != space["Above"](0.25)
    with pytest.raises(ValueError, match="too much"):
        space["Below"](1.5)


def test_a_default_given_anew_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = IN_ONE.replace("    more: int = 5", "    more: int = 5\n    share: float = 0.125")
    for text in (anew, spelled_out(anew)):
        space = imported(text, monkeypatch)
        assert (space["Above"]().share, space["Below"]().share) == (0.5, 0.125)
        assert space["Below"](0.25, 7) == space["Below"](share=0.25, more=7)
        assert [one.name for one in dataclasses.fields(space["Below"])] == ["share", "more"]


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass(order=True)\nclass A:\n    x: int\n",
        "@dataclass\nclass A(B):\n    x: int\n",
        "class B:\n    y: int\n\n@dataclass\nclass A(B):\n    x: int\n",
        "from elsewhere import B\n\n@dataclass\nclass A(B):\n    x: int\n",
        "@dataclass\nclass A(B, C):\n    x: int\n",
        "@other\n@dataclass\nclass A:\n    x: int\n",
        "@dataclass\nclass A:\n    x: int = field(default=3)\n",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not spelled out"):
        spelled_out(text)


def test_what_has_no_dataclass_stays() -> None:
    assert spelled_out("x = 1\n") == "x = 1\n"
