"""A demo's output folder: emptied of an earlier demo's output, never of anything else; one demo at a time."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from typing import TYPE_CHECKING

from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARKER = ".epp-demo"
_OTHER = "choose another with --out"


@contextlib.contextmanager
def output(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, with nothing of an earlier demo in it; ours until the end.

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
        _empty(folder)
        yield


def _empty(folder: Path) -> None:
    """Remove all but the marker."""
    for path in folder.iterdir():
        if path.name == _MARKER:
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            raise EppError(f"{path}, of an earlier demo, cannot be removed: {error.strerror}") from error
