"""What holds for all tests: an example that takes long on a busy machine is no failure, Ctrl-C interrupts."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell that runs the tests in the background has it ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
