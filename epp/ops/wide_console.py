"""Where tables of records go: as wide as they need where nothing tells a width."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PLAIN_WIDTH = 180


def wide_console() -> Console:
    """A pipe or `kubectl exec` has no width, and the usual 80 columns would cut addresses and figures."""
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if told else _PLAIN_WIDTH)
