"""Child processes that cannot outlive their parent, and how they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_to_parent(binary: str, *arguments: str) -> tuple[str, ...]:
    """The command that becomes ``binary``, killed by the kernel when this process dies, however that dies.

    A script of its own and not `preexec_fn`, because code between fork and exec can deadlock in a process
    that has threads, as gRPC's has.
    """
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), binary, *arguments)


def ending(process: asyncio.subprocess.Process | None) -> str | None:
    """Say how a process ended, None while it runs."""
    if process is None:
        return "not started"
    status = process.returncode
    if status is None:
        return None
    return f"status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


async def stop(process: asyncio.subprocess.Process | None, within_s: float) -> None:
    """Ask a process to end, and end it when it does not in time, or nobody waits for that any longer."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError):
            raise
