"""The machine's clocks, for processes; whoever only needs the time need not load the server for it."""

from __future__ import annotations

import time


class SystemClock:
    """`epp.clock.Clock` of this machine."""

    def mono_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Unix time."""
        return time.time()
