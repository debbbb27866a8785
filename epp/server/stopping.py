"""Which signals end a process in order. Owns that choice; what is done then is the process's own."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP of a terminal that closes; not SIGHUP where it is ignored (`nohup`).

    Nothing is read anew for SIGHUP: files that may change are watched.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
