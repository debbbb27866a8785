"""`epp top`: the live page of a picker, in a terminal; `epp explain` explains its decisions."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast
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
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

#: Between two pictures; between two tries to reach a picker; until all pickers have told of themselves.
_PICTURE_S, _RETRY_S, _FIRST_S = 0.25, 1.0, 1.5
_ROWS, _BAR, _METER = 40, 24, 8
_GONE_S = 10.0
#: Of Okabe and Ito (2008), as on the page.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98")


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
    seen, console = Seen(), wide_console()
    follower = threading.Thread(target=follow, args=(arguments.url, seen), daemon=True)
    follower.start()
    while not seen.pickers:
        if seen.problem:
            raise EppError(seen.problem)
        time.sleep(0.05)
    if arguments.ask:
        seen.asked = arguments.ask
        with answered(arguments.url, f"ui/opinion?policy={quote(arguments.ask)}") as answer:
            for kind, content in events(cast("Iterable[bytes]", answer)):
                seen.take(kind, content)
    if not sys.stdout.isatty():
        time.sleep(_FIRST_S)
        console.print(seen.picture(console.height))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(seen.picture(console.height), refresh=True)
            time.sleep(_PICTURE_S)


class Seen:
    """What the events have told so far.

    Attributes:
        pickers: last frame of each, by name.
        asked: policy whose opinion is shown.
        problem: why there are no events, ``""`` while there are.
    """

    def __init__(self) -> None:
        self.pickers: dict[str, dict[str, Any]] = {}
        self.rows: deque[dict[str, Any]] = deque(maxlen=_ROWS)
        self.asked = self.problem = ""
        self._own, self._not_costs = "", frozenset[str]()
        self._rates: dict[str, float] = {}
        self._colors: dict[str, str] = {}
        self._opinions: dict[str, dict[str, Any]] = {}

    def take(self, kind: str, content: dict[str, Any]) -> None:
        """Take an event."""
        self.problem = ""
        if kind == "hello":
            self._own, self._not_costs = content["picker"], frozenset(content["not_costs"])
        elif kind == "opinion":
            self._opinions[content["picker"]] = content
        elif kind == "frame":
            self._take_frame(content)

    def _take_frame(self, frame: dict[str, Any]) -> None:
        name, before = frame["picker"], self.pickers.get(frame["picker"])
        if before and frame["at"] > before["at"]:
            rate, known = (
                (frame["made"] - before["made"]) / (frame["at"] - before["at"]),
                self._rates.get(name),
            )
            self._rates[name] = rate if known is None else known + 0.3 * (rate - known)
        frame["heard_s"] = now_s = time.monotonic()
        known_ids = {row["id"] for row in self.rows}
        for row in reversed(frame["decisions"]):
            if row["id"] not in known_ids:
                self.rows.appendleft(row)
        self.pickers = {
            **{other: it for other, it in self.pickers.items() if now_s - it["heard_s"] < _GONE_S},
            name: frame,
        }

    def picture(self, height: int) -> RenderableType:
        """Draw everything, decisions as far as a screen of so many lines has room."""
        frame = self.pickers.get(self._own) or next(iter(self.pickers.values()))
        fleet, words = self._fleet(frame["fleet"], height // 2), self._words(frame)
        # Beside these the head, and the titles of the tables.
        room = height - fleet.row_count - len(words) - 5
        lines = [Text.from_markup(line, overflow="ellipsis") for line in words]
        for line in lines:
            line.no_wrap = True
        return Group(self._head(frame), fleet, *lines, self._decisions(max(room, 3)))

    def _head(self, frame: dict[str, Any]) -> Text:
        pickers = [
            f"{name} {self._rates.get(name, 0.0):,.0f}/s{', leads' if it['leads'] else ''}"
            for name, it in self.pickers.items()
        ]
        state = self.problem or "live"
        return Text(f"epp  {state}  policy {frame['weights']['policy']}  {'  '.join(pickers)}", style="bold")

    def _fleet(self, fleet: dict[str, list[Any]], room: int) -> Table:
        table = Table("region", "endpoint", "state", box=None, padding=(0, 2, 0, 0))
        for title in ("running", "", "tokens", "to prefill", "queued", "believed hits", "", "RTT ms", "KV"):
            table.add_column(title, justify="left" if title == "" else "right", no_wrap=True)
        most = max([8, *fleet["running"]])
        order = sorted(range(len(fleet["address"])), key=lambda at: (fleet["region"][at], at))
        for at in order[:room]:
            sums = [frame["picked"].get(fleet["address"][at], (0, 0.0)) for frame in self.pickers.values()]
            prompt, cached = map(sum, zip(*sums, strict=True))
            share, state = cached / prompt if prompt else 0.0, fleet["state"][at]
            table.add_row(
                escape(fleet["region"][at]),
                escape(fleet["address"][at]),
                Text(state, style="green" if state in ("healthy", "trial") else "red"),
                _number(fleet["running"][at]),
                _meter(fleet["running"][at] / most, _COLORS[0]),
                _number(fleet["queued"][at]),
                _number(fleet["pending"][at]),
                _number(fleet["engine_waiting"][at]),
                f"{share:.0%}" if prompt else "-",
                _meter(share, _COLORS[2]),
                _number(fleet["rtt_ms"][at]),
                "-" if fleet["kv"][at] is None else f"{fleet['kv'][at]:.0%}",
            )
        if len(order) > room:
            table.add_row("", f"and {len(order) - room} more")
        return table

    def _words(self, frame: dict[str, Any]) -> list[str]:
        """Tell weights, tuner, learner and the other policy's opinion, a line each."""
        weights, model = frame["weights"], frame["learned"] and frame["learned"]["model"]
        lines = []
        if weights["values"]:
            trial, bounds = weights["trial"], weights["bounds"]
            tried = {} if trial is None else trial["values"]
            cells = [
                f"{escape(name)} [bold]{value:g}[/bold]"
                + (f" -> {tried[name]:g}" if tried.get(name, value) != value else "")
                + f" [dim]{bounds[name][0]:g}..{bounds[name][1]:g}[/dim]"
                for name, value in weights["values"].items()
            ]
            phase = (
                "no trial"
                if trial is None
                else f"trial {trial['id']}, {trial['kind']}: {trial['arm']} serves"
            )
            reason = f"; {weights['reason']}" if weights["reason"] else ""
            lines += ["  ".join(cells), escape(f"tuner: {phase}{reason}")]
        if model:
            withdrawn = f", withdrawn: {model['withdrawn']}" if model["withdrawn"] else ""
            lines.append(escape(f"learner: model {model['version']}, round {model['round']}{withdrawn}"))
        return [*lines, *filter(None, [self._opinion()])]

    def _opinion(self) -> str:
        found = [one for one in self._opinions.values() if one["policy"] == self.asked]
        if error := next((one["error"] for one in found if "error" in one), ""):
            return escape(error)
        count = sum(one["decisions"] for one in found)
        if not count:
            return ""
        agreed = sum(one["agreed"] for one in found)
        mean = sum(one["decisions"] * (one["difference_ms"] or 0.0) for one in found) / count
        return (
            f"{self.asked} would have picked the same on {agreed / count:.0%} of {count:,} decisions; "
            f"{mean:+,.1f} ms a request, estimated at learned rates, no queue simulated"
        )

    def _decisions(self, room: int) -> Table:
        shown = list(self.rows)[:room]
        most = max((sum(map(_positive, self._costs(row).values())) for row in shown), default=0.0) or 1.0
        title = Text("terms of the cost:")
        for name in dict.fromkeys(name for row in shown for name in self._costs(row)):
            title.append(f" {name}", style=self._color(name))
        table = Table(
            "model", box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style=""
        )
        for name in ("prompt", "cached"):
            table.add_column(name, justify="right")
        for name in ("endpoint", "terms"):
            table.add_column(name, no_wrap=True)
        for name in ("cost", "next best"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("id", no_wrap=True)
        for row in shown:
            bar = Text()
            for name, value in self._costs(row).items():
                bar.append("█" * round(_BAR * _positive(value) / most), style=self._color(name))
            table.add_row(
                escape(row["model"]),
                _number(row["tokens"]),
                f"{row['cached'] / row['tokens']:.0%}" if row["tokens"] else "-",
                escape(f"{row['region']} {row['to']}"),
                bar,
                _number(row["cost"]),
                "-" if row["next"] is None else f"{row['next'] - row['cost']:+,.0f}",
                row["id"],
            )
        return table

    def _costs(self, row: dict[str, Any]) -> dict[str, float]:
        return {name: value for name, value in row["terms"].items() if name not in self._not_costs}

    def _color(self, term: str) -> str:
        return self._colors.setdefault(term, _COLORS[min(len(self._colors), len(_COLORS) - 1)])


def follow(url: str, seen: Seen) -> None:
    """Read events for ever; a stream that ends is opened anew."""
    while True:
        try:
            with answered(url, "ui/events") as answer:
                for kind, content in events(cast("Iterable[bytes]", answer)):
                    seen.take(kind, content)
        except EppError as error:
            seen.problem = str(error)
            time.sleep(_RETRY_S)


def events(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read server-sent events of one line of data each."""
    kind = ""
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def _positive(value: float) -> float:
    return max(value, 0.0)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _meter(share: float, color: str) -> Text:
    return Text("█" * round(_METER * min(share, 1.0)), style=color)
