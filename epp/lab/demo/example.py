"""What every demo begins with: its arguments, a folder for its output, an end in order."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MARKER = ".epp-demo"
_OTHER = "choose another with --out"


def run_example(
    parser: argparse.ArgumentParser,
    show: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
    *,
    out: str = "demo-out",
) -> int:
    """Run a demo in the folder of its ``--out``; its exit status."""
    parser.add_argument("--out", type=Path, default=Path(out), help="folder for output (%(default)s)")
    arguments = parser.parse_args(argv)
    end_like_ctrl_c()
    try:
        with output(arguments.out):
            return show(arguments)
    except KeyboardInterrupt:
        return 130
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2


def end_like_ctrl_c() -> None:
    """Have SIGTERM and a terminal that is gone end this process in order, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def at_least(low: float) -> Callable[[str], float]:
    """Return a reader of arguments that must be numbers from this one on, and of its type."""

    def number(text: str) -> float:
        value = type(low)(text)
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} must be {low} or more")
        return value

    return number


@contextlib.contextmanager
def output(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is missing, with nothing of an earlier demo in it, until the end.

    Raises:
        EppError: it holds something else, another demo is writing to it, or it cannot be written.
    """
    marker = folder / _MARKER
    try:
        if folder.exists() and not marker.exists() and any(folder.iterdir()):
            raise EppError(
                f"{folder} is not the output of a demo (it has no {_MARKER}): empty it, or {_OTHER}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock = marker.open("ab")
    except OSError as error:
        raise EppError(f"{folder} cannot be the folder for output: {error.strerror}; {_OTHER}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EppError(f"another demo is writing to {folder}; {_OTHER}") from None
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:
                path.unlink()
        yield
