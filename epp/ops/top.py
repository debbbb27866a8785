"""`epp top`: the live page of a picker, in a terminal; `epp explain` explains its decisions."""

from __future__ import annotations

import json
import sys
import termios
import time
import tty
from collections import Counter
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from epp.console.figures import clock_time, share
from epp.errors import EppError
from epp.ops.picker_http import answered
from epp.ops.records import wide_console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import JustifyMethod, RenderableType

#: Between two tries to reach a picker; what opinions may take; pictures until all pickers have answered.
_RETRY_S, _OPINION_S, _FIRST = 1.0, 20.0, 3
#: Pictures between two looks at the last hour.
_AGAIN = 10
_BAR = 24
#: Of Okabe and Ito (2008), as on the page.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98")
#: Columns of words; figures stand at the right.
_WORDS = ("region", "endpoint", "state", "terms", "model", "replica", "id")
#: Widths from which there is room for more columns, and for both windows side by side.
_WIDE, _BOTH = 120, 150
_WINDOWS = ("last 5 minutes", "last hour")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:9090", help="of the picker's HTTP side (%(default)s)")
    add(
        "--ask", default="", metavar="POLICY", help="what it would have picked on the last thousand decisions"
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
    seen = pictures(url)
    picture, before = next(seen), termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def show() -> None:
                live.update(drawn(picture, pressed, console.width, console.height, opinion), refresh=True)

            def follow() -> None:
                nonlocal picture
                while True:
                    picture = next(seen)
                    show()

            Thread(target=follow, daemon=True).start()
            while (key := sys.stdin.read(1)) not in ("q", ""):
                pressed[key] += 1
                show()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    return 0


def pictures(url: str) -> Iterator[dict[str, Any]]:
    """Read pictures for ever, with the last hour; a stream that ends is opened anew.

    Raises:
        EppError: there is none at all.
    """
    picture: dict[str, Any] = {}
    past, turn = {}, 0
    while True:
        try:
            with answered(url, "ui/events") as lines:
                for line in lines:
                    if line.startswith(b"data: "):
                        if turn % _AGAIN == 0:
                            with answered(url, "ui/history") as answer:
                                past = json.load(answer)
                        turn += 1
                        picture = json.loads(line[6:]) | {"past": past}
                        yield picture
        except EppError as error:
            if not picture:
                raise
            yield picture | {"problem": str(error)}
            time.sleep(_RETRY_S)


def drawn(
    picture: dict[str, Any], pressed: Counter[str], width: int, height: int, opinion: Sequence[str] = ()
) -> RenderableType:
    """Draw everything, decisions as far as a screen of this size has room.

    ``g``, ``s`` and ``w`` choose what the past is grouped by and sorted by, and its window.
    """
    first, *others = picture["pickers"]
    fields = ("id", "value", "tried", "bounds")
    weights = [" ".join(filter(None, map(each.get, fields))) for each in first["weights"]]
    labels = [first["policy"], first["label"], *(each["label"] for each in others)]
    head = "  ".join(["epp", picture.get("problem", "live"), *labels])
    outs = [
        "  ".join(map(each.get, ("id", "region", "state", "why"))) for each in first["fleet"] if each["out"]
    ]
    failures = [
        "  ".join((clock_time(at_s), endpoint or "-", model or "-", why))
        for at_s, _, model, endpoint, why in picture["failures"]
    ]
    room = max(height // 6, 3)
    past, fleet = _past(picture["past"], pressed, width, room), _fleet(first["fleet"], width, room)
    parts = [
        Text(head, style="bold"),
        *(Text(line, style="red") for line in outs[:room]),
        past,
        *(Text(line, style="yellow") for line in failures[: room // 2]),
        fleet,
        Text("  ".join(weights)),
        *map(Text, filter(None, [*first["words"], *opinion])),
    ]
    used = sum(part.row_count + 2 if isinstance(part, Table) else -(-len(part) // width) for part in parts)
    shown = picture["decisions"][: max(height - used - 3, 3)]
    return Group(*parts, _decisions(shown, first["unit"], width))


def _past(past: dict[str, Any], pressed: Counter[str], width: int, room: int) -> Table:
    figures, groups = past["figures"], past["groups"]
    group, column = [*groups][pressed["g"] % len(groups)], pressed["s"] % len(figures)
    windows = [pressed["w"] % 2] if width < _BOTH else [0, 1]
    titles = ", ".join(_WINDOWS[window] for window in windows)
    table = _table(group, *figures * len(windows))
    table.title = f"{titles}, by {figures[column]}; q: quit, g: group, s: sort, w: window"
    rows = sorted(groups[group], key=lambda row: -(row[1 + windows[0]][column] or 0.0))
    for name, *each in rows[:room]:
        cells = (_figure(*one) for window in windows for one in zip(figures, each[window], strict=True))
        table.add_row(escape(name), *cells)
    return table


def _figure(name: str, value: float | None) -> str:
    return "-" if value is None else share(value) if name == "hits" else f"{value:,g}"


def _fleet(fleet: list[dict[str, Any]], width: int, room: int) -> Table:
    columns = ("running", "tokens", "prefill", "queued", "rtt", "kv")[:: 1 if width >= _WIDE else 3]
    table = _table("region", "endpoint", "state", *columns)
    for row in sorted(fleet, key=lambda row: str(row["region"]))[:room]:
        state = Text(row["state"], style="red" if row["out"] else "green")
        table.add_row(escape(row["region"]), escape(row["id"]), state, *(row[name] for name in columns))
    if len(fleet) > room:
        table.add_row("", f"and {len(fleet) - room} more")
    return table


def _decisions(rows: list[dict[str, Any]], unit: str, width: int) -> Table:
    most = max((sum(max(value, 0.0) for value in row["terms"].values()) for row in rows), default=0.0) or 1.0
    names = dict.fromkeys(name for row in rows for name in row["terms"])
    colors = {name: _COLORS[min(at, len(_COLORS) - 1)] for at, name in enumerate(names)}
    columns = ("endpoint", "cost", "next", "model", "prompt", "cached", "id")[: 7 if width >= _WIDE else 3]
    table = _table("terms", *columns)
    table.title = Text.assemble(f"costs in {unit}:", *((f" {name}", color) for name, color in colors.items()))
    for row in rows:
        bar = Text()
        for name, value in row["terms"].items():
            bar.append("█" * round(_BAR * max(value, 0.0) / most), style=colors[name])
        table.add_row(bar, *(escape(row[name]) for name in columns))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    for title in titles:
        justify: JustifyMethod = "left" if title in _WORDS else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    return table
