"""A real nats-server for tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from epp.errors import EppError
from epp_lab.demo.nats import Nats

if TYPE_CHECKING:
    from pathlib import Path


def nats_server(folder: Path, *lines: str) -> Nats:
    """A server, not started; skips the calling test without one, which on CI is a failure."""
    try:
        return Nats(folder, *lines)
    except EppError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
