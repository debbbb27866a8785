"""A digest of the source that decides what a run comes to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = Path(__file__).parent.parent / "epp"
_SOURCES = ("config", "decide", "policies", "prompt", "replay", "signals", "sim", "draw.py", "view.py")


def source_digest(names: Iterable[str] = _SOURCES) -> str:
    """Of files and folders of the package."""
    digest = hashlib.sha256()
    for name in names:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
