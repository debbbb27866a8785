"""Requests while the wall clock of their picker jumps."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from epp.feeds.files import replace_file
from tests.kit.picker import Serving, until_seen

if TYPE_CHECKING:
    from collections import Counter

#: `epp` by a wall clock that is off by the seconds in a file.
_PROGRAM = """
import sys, time
from pathlib import Path
from epp.cli import main
from epp.server.process import SystemClock
file = Path(sys.argv.pop(1))
SystemClock.wall_s = staticmethod(lambda: time.time() + float(file.read_text()))
sys.exit(main())
"""


async def seen() -> Counter[int]:
    """Count answers by status, while the clock jumps ahead by an hour, back by two, and home."""
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name:
        file = Path(name, "off")
        replace_file(file, b"0")
        program = (sys.executable, "-c", _PROGRAM, str(file))
        async with Serving(Path(name), program=program) as serving, serving.under_load() as counted:
            for off in (b"3600", b"-3600", b"0"):
                await until_seen(counted, 300)
                replace_file(file, off)
            await until_seen(counted, 300)
        return counted
