"""How far a long command is, and how long it still takes: on standard error, for who waits at a terminal."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    class Step(Protocol):
        """Called with what is going on, how much of it is done, how much there is, and what to say of it."""

        def __call__(self, title: str, done: int, total: int, said: str = "", /) -> None:
            """Show it."""


_LINE_EVERY_S = 30.0
#: Steps within so long tell how long the others take; one may take minutes.
_LONGEST_S = 7200.0


@contextlib.contextmanager
def progress(stream: TextIO, *, time_s: Callable[[], float] = time.monotonic) -> Iterator[Step]:
    """Show a progress bar on a terminal, and on anything else a line every 30 seconds, with the time left."""
    console = Console(file=stream)
    if not console.is_terminal:
        last_s = time_s()
        begun_s: dict[str, float] = {}

        def line(title: str, done: int, total: int, said: str = "", /) -> None:
            nonlocal last_s
            now_s = time_s()
            spent_s = now_s - begun_s.setdefault(title, now_s)
            if said:
                print(said, file=stream, flush=True)
            if now_s - last_s >= _LINE_EVERY_S and done:
                last_s = now_s
                left = f"about {math.ceil(spent_s * (total - done) / done / 60)} min left"
                print(f"{title}: {done} of {total} done, {left}", file=stream, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # What is printed into a file meanwhile goes there, not above the bar.
    shared = sys.stdout.isatty()
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=shared,
        speed_estimate_period=_LONGEST_S,
    ) as bar:
        tasks = {}

        def step(title: str, done: int, total: int, said: str = "", /) -> None:
            if said:
                bar.console.print(said, highlight=False, markup=False)
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total)
            bar.update(tasks[title], completed=done)

        yield step
