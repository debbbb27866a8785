"""Log lines of ours alone: other libraries log when they like, grpc's poller for one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def own_lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Messages from a level on, each with its traceback."""
    form = logging.Formatter()
    return [
        form.format(record)
        for record in caplog.records
        if record.name.split(".")[0] == "epp" and record.levelno >= level
    ]
