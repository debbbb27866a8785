"""How far a long command is, and how long it still takes: on standard error, for who waits at a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINE_EVERY_S = 30.0
#: Steps within so long tell how long the others take; one may take minutes.
_LONGEST_S = 7200.0


@contextlib.contextmanager
def progress(
    stream: TextIO, *, time_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal, and on anything else a line every 30 seconds."""
    console = Console(file=stream)
    if not console.is_terminal:
        last_s = time_s()

        def line(title: str, done: int, total: int) -> None:
            nonlocal last_s
            if time_s() - last_s >= _LINE_EVERY_S:
                last_s = time_s()
                print(f"{title}: {done} of {total} done", file=stream, flush=True)

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

        def step(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total)
            bar.update(tasks[title], completed=done)

        yield step
