"""No Envoy outlives whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from tests.kit.envoy import require_envoy

pytestmark = pytest.mark.envoy

_PARENT = """
import asyncio
from epp.envoy.process import EnvoyProcess
from tests.kit.envoy import settings

async def main():
    async with EnvoyProcess(settings([], 1)) as envoy:
        print(envoy.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_killed_parent_takes_envoy_with_it(tmp_path: Path) -> None:
    require_envoy()
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    await parent.communicate()
    async with asyncio.timeout(240):
        while True:
            if not alive(pid):
                return
            await asyncio.sleep(0.02)
