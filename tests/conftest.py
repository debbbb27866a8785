"""What holds for all tests.

An example that takes long on a busy machine is no failure, and forty are enough for a run. Ctrl-C interrupts. Side by
side, files run in their own order: by number of tests, as xdist has it, the few long ones would come last and alone.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

# A shell that runs the tests in the background has it ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files, where xdist is there."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
