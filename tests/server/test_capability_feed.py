"""The capability file while the picker runs: what is said of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epp.server.capability import CapabilityFeed
from epp.server.metrics import Metrics
from epp.signals.capability import Capability

if TYPE_CHECKING:
    import pytest


def test_a_capability_file_that_is_not_there_is_not_told_as_a_table(caplog: pytest.LogCaptureFixture) -> None:
    feed = CapabilityFeed(Capability(), Metrics(), "chances.yaml")
    with caplog.at_level(logging.INFO):
        feed.content(None)
    assert "no capability file in chances.yaml" in caplog.text
    assert "capability of 0 models" not in caplog.text
