"""`epp top`: the live page of a picker, in a terminal; `epp explain` explains its decisions."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from epp.console.figures import clock_time, share
from epp.errors import EppError
from epp.ops.picker_http import answered
from epp.ops.records import wide_console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

#: Between two tries to reach a picker; what opinions may take; pictures until all pickers have answered.
_RETRY_S, _OPINION_S, _FIRST = 1.0, 20.0, 3
_BAR = 24
#: Of Okabe and Ito (2008), as on the page.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98")
#: Columns: as many of the first ones as have room.
_FLEET = ("endpoint", "region", "state", "running", "queued", "tokens", "prefill", "rtt", "kv", "agents")
_DECISIONS = ("endpoint", "cost", "next", "prompt", "cached", "model", "id")
_QUEUE = ("priority", "flow", "endpoint", "waiting", "oldest s")
_FAILURES = ("time", "endpoint", "model", "count", "cause")
#: Columns of words; figures stand at the right. Those of any length are folded.
_WORDS = ("region", "endpoint", "state", "terms", "model", "replica", "id", "time", "cause", "flow")
_FOLDED = ("model", "cause", "replica")
_WINDOWS = ("last 5 minutes", "last hour")
_BAD = _COLORS[5]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:9090", help="of the picker's HTTP side (%(default)s)")
    add(
        "--ask", default="", metavar="POLICY", help="what it would have chosen in the last thousand decisions"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a picker until told to stop; where there is no terminal, once.

    Raises:
        EppError: no picker with a live page answers.
    """
    url, console, opinion, pressed = arguments.url, wide_console(), list[str](), Counter[str]()
    if arguments.ask:
        with answered(url, f"ui/opinion?policy={quote(arguments.ask)}", timeout_s=_OPINION_S) as answer:
            opinion = json.load(answer)["words"]
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        *_, picture = islice(pictures(url), _FIRST)
        console.print(drawn(picture, pressed, console.width, console.height, opinion))
        return 0
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for picture in pictures(url):
                if select.select([sys.stdin], [], [], 0.0)[0]:
                    pressed.update(os.read(sys.stdin.fileno(), 64).decode(errors="replace"))
                if pressed["q"]:
                    break
                live.update(drawn(picture, pressed, console.width, console.height, opinion), refresh=True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    return 0


def pictures(url: str) -> Iterator[dict[str, Any]]:
    """Read pictures for ever; a stream that ends is opened anew.

    Raises:
        EppError: there is none at all.
    """
    picture: dict[str, Any] = {}
    while True:
        try:
            with answered(url, "ui/events") as lines:
                for line in lines:
                    if line.startswith(b"data: "):
                        picture = json.loads(line[6:])
                        yield picture
        except EppError as error:
            if not picture:
                raise
            yield picture | {"problem": str(error)}
            time.sleep(_RETRY_S)


def drawn(
    picture: dict[str, Any], pressed: Counter[str], width: int, height: int, opinion: Sequence[str] = ()
) -> RenderableType:
    """Draw everything, as far as a screen of this size has room.

    ``g``, ``s`` and ``w`` choose what the past is grouped by and sorted by, and its window.
    """
    first, *others = picture["pickers"]
    room, fields = max(height // 6, 3), ("id", "value", "tried", "bounds")
    weights = [" ".join(filter(None, map(each.get, fields))) for each in first["weights"]]
    labels = [first["policy"], first["label"], *(each["label"] for each in others)]
    outs = ["  ".join(map(row.get, ("id", "region", "state", "why"))) for row in first["fleet"] if row["out"]]
    columns, waiting = _FLEET[: width // 13], picture["queue"]
    parts: list[Text | Table] = [
        Text("  ".join(["epp", picture.get("problem", "live"), *labels]), "bold"),
        *(Text(line, _BAD) for line in outs[:room]),
        _past(picture["past"], pressed, room),
        *([_table("queue", _QUEUE, (map(str, row) for row in waiting[:room]))] if waiting else []),
        _table("last failures", _FAILURES, map(_failure, picture["failures"][: room // 2])),
        _table(
            "", columns, (map({**row, "endpoint": row["id"]}.get, columns) for row in first["fleet"][:room])
        ),
        *map(Text, filter(None, ["  ".join(weights), *first["words"], *opinion])),
    ]
    used = sum(2 + part.row_count if isinstance(part, Table) else -(-len(part) // width) for part in parts)
    return Group(*parts, _decisions(picture["decisions"][: max(height - used - 3, 3)], first["unit"], width))


def _past(past: dict[str, Any], pressed: Counter[str], room: int) -> Table:
    figures, groups = past["figures"], past["groups"]
    name, column, window = [*groups][pressed["g"] % 3], pressed["s"] % len(figures), pressed["w"] % 2
    rows = sorted(groups[name], key=lambda row: -(row[1 + window][column] or 0.0))[:room]
    return _table(
        f"{_WINDOWS[window]}, by {figures[column]}; q: quit, g: group, s: sort, w: window",
        (name, *figures),
        ([row[0], *map(_figure, figures, row[1 + window])] for row in rows),
    )


def _figure(name: str, value: float | None) -> str:
    return "-" if value is None else share(value) if name == "hits" else f"{value:,g}"


def _failure(row: Sequence[Any]) -> tuple[str, ...]:
    model, endpoint, why, _, at_s, count = row
    return clock_time(at_s), endpoint or "-", model or "-", f"{count:,}", why


def _decisions(rows: list[dict[str, Any]], unit: str, width: int) -> Table:
    most = max((sum(max(value, 0.0) for value in row["terms"].values()) for row in rows), default=0.0) or 1.0
    names = dict.fromkeys(name for row in rows for name in row["terms"])
    colors = {name: _COLORS[min(at, len(_COLORS) - 1)] for at, name in enumerate(names)}
    columns = _DECISIONS[: width // 22]

    def bar(row: dict[str, Any]) -> Text:
        parts = ((name, "█" * round(_BAR * max(value, 0.0) / most)) for name, value in row["terms"].items())
        return Text.assemble(*((part, colors[name]) for name, part in parts))

    title = Text.assemble(f"costs in {unit}:", *((f" {name}", color) for name, color in colors.items()))
    return _table(title, ("terms", *columns), ([bar(row), *map(row.get, columns)] for row in rows))


def _table(title: str | Text, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> Table:
    table = Table(
        title=title or None, box=None, padding=(0, 1, 0, 0), title_justify="left", title_style="bold"
    )
    for name in columns:
        table.add_column(
            name, justify="left" if name in _WORDS else "right", no_wrap=name not in _FOLDED, overflow="fold"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table
