"""Figures as people read them, on the live page and in the terminal."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def number(value: float | None, digits: int = 0) -> str:
    """Format a number, ``-`` where it is not known."""
    return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def share(part: float, whole: float = 1.0) -> str:
    """Format a part of a whole in percent, ``-`` where it is not known or there is no whole."""
    return f"{part / whole:.0%}" if whole and not math.isnan(part) else "-"


def clock_time(wall_s: float) -> str:
    """Format an instant as the time of a day in UTC."""
    return f"{datetime.fromtimestamp(wall_s, UTC):%H:%M:%S}"
