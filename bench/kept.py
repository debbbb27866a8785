"""Runs kept in a file, a line each: read again by whoever goes on, and added to.

Owns what a process leaves behind that was killed while it wrote: half a line at the end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

_T = TypeVar("_T")


def lines(path: Path, kind: type[_T]) -> list[_T]:
    """The lines of a file, without those that are half of one; none where there is no file."""
    out: list[_T] = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            out.append(msgspec.json.decode(text, type=kind))
        except msgspec.DecodeError:
            continue
    return out


def adding(path: Path) -> BinaryIO:
    """The file, open for whole lines to be added; half a line is ended first, or it would spoil the next."""
    file = path.open("a+b")
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.write(b"\n")
    return file
