"""Requests while the wall clock of their picker jumps.

`python -m tests.attacks.jump FILE WORDS...` is `epp WORDS...`, with a wall clock that is off by the seconds in a file.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from epp.cli import main as epp
from epp.server.files import replace_file
from epp.server.process import SystemClock
from tests.kit.picker import Serving, until_seen

if TYPE_CHECKING:
    from collections import Counter

_HOUR_S = 3600
#: Requests before each jump and after the last.
_REQUESTS = 300


async def _seen() -> Counter[int]:
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name:
        file = Path(name) / "off"
        file.write_text("0")
        program = (sys.executable, "-m", "tests.attacks.jump", str(file))
        async with Serving(Path(name), program=program) as serving, serving.under_load() as seen:
            for off_s in (_HOUR_S, 0, -_HOUR_S, 0):
                await until_seen(seen, _REQUESTS)
                replace_file(file, str(off_s).encode())
            await until_seen(seen, _REQUESTS)
        return seen


def seen() -> Counter[int]:
    """Count answers by status, while the clock jumps ahead by an hour, back by two, and home."""
    return asyncio.run(_seen())


def main() -> int:
    """Run `epp` by the clock that the file sets."""
    file, now_s = Path(sys.argv.pop(1)), time.time
    time.time = lambda: now_s() + float(file.read_text())
    SystemClock.wall_s = staticmethod(time.time)
    return epp()


if __name__ == "__main__":
    sys.exit(main())
