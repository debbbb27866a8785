"""`epp top`: the live page of a picker, in a terminal; `epp explain` explains its decisions."""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from epp.errors import EppError
from epp.ops.picker_http import answered
from epp.ops.records import wide_console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import JustifyMethod, RenderableType

#: Between two tries to reach a picker; what opinions may take; pictures until all pickers have answered.
_RETRY_S, _OPINION_S, _FIRST = 1.0, 20.0, 3
_BAR, _METER = 24, 8
#: Of Okabe and Ito (2008), as on the page.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98")
_FLEET = ("running", "load", "tokens", "prefill", "queued", "believed", "hits", "rtt", "kv")
_DECISIONS = ("model", "prompt", "cached", "endpoint", "cost", "next", "id")
#: Columns of words and bars; figures stand at the right.
_LEFT = ("region", "state", "load", "hits", "terms", "model", "endpoint", "id")
_STYLES = {"load": _COLORS[0], "hits": _COLORS[2]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:9090", help="of the picker's HTTP side (%(default)s)")
    add(
        "--ask", default="", metavar="POLICY", help="what it would have picked on the last thousand decisions"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a picker until told to stop; where the output is no terminal, once.

    Raises:
        EppError: no picker with a live page answers.
    """
    url, console, opinion = arguments.url, wide_console(), list[str]()
    if arguments.ask:
        with answered(url, f"ui/opinion?policy={quote(arguments.ask)}", timeout_s=_OPINION_S) as answer:
            opinion = json.load(answer)["words"]
    if not sys.stdout.isatty():
        *_, picture = islice(pictures(url), _FIRST)
        console.print(drawn(picture, console.height, opinion))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for picture in pictures(url):
            live.update(drawn(picture, console.height, opinion), refresh=True)
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


def drawn(picture: dict[str, Any], height: int, opinion: Sequence[str] = ()) -> RenderableType:
    """Draw everything, decisions as far as a screen of so many lines has room."""
    first, *others = picture["pickers"]
    fleet, fields = _fleet(first["fleet"], height // 2), ("id", "value", "tried", "bounds")
    weights = [" ".join(filter(None, map(each.get, fields))) for each in first["weights"]]
    words = ["  ".join(weights), *first["words"], *opinion]
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in words if line]
    labels = [first["policy"], first["label"], *(each["label"] for each in others)]
    head = "  ".join(["epp", picture.get("problem", "live"), *labels])
    # Beside these the head, and the titles of the tables.
    room = max(height - fleet.row_count - len(lines) - 5, 3)
    return Group(Text(head, style="bold"), fleet, *lines, _decisions(picture["decisions"][:room]))


def _fleet(fleet: list[dict[str, Any]], room: int) -> Table:
    table = _table("region", "endpoint", "state", *_FLEET)
    for row in sorted(fleet, key=lambda row: str(row["region"]))[:room]:
        cells = (
            "█" * round(_METER * row[name]) if isinstance(row[name], float) else row[name] for name in _FLEET
        )
        state = Text(row["state"], style="red" if row["out"] else "green")
        table.add_row(escape(row["region"]), escape(row["id"]), state, *cells)
    if len(fleet) > room:
        table.add_row("", f"and {len(fleet) - room} more")
    return table


def _decisions(rows: list[dict[str, Any]]) -> Table:
    most = max((sum(max(value, 0.0) for value in row["terms"].values()) for row in rows), default=0.0) or 1.0
    names = dict.fromkeys(name for row in rows for name in row["terms"])
    colors = {name: _COLORS[min(at, len(_COLORS) - 1)] for at, name in enumerate(names)}
    table = _table("terms", *_DECISIONS)
    table.title = Text.assemble(
        "terms of the cost:", *((f" {name}", color) for name, color in colors.items())
    )
    for row in rows:
        bar = Text()
        for name, value in row["terms"].items():
            bar.append("█" * round(_BAR * max(value, 0.0) / most), style=colors[name])
        table.add_row(bar, *(escape(row[name]) for name in _DECISIONS))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title_style="")
    for title in titles:
        justify: JustifyMethod = "left" if title in _LEFT else "right"
        table.add_column(title, justify=justify, style=_STYLES.get(title), no_wrap=True)
    return table
