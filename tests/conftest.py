"""What holds for all tests: an example that takes long on a busy machine is no failure, forty are enough for a run, Ctrl-C interrupts."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

# A shell that runs the tests in the background has it ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
