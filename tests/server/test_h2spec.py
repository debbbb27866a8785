"""What `h2spec` finds of the picker's own listener; `make h2spec` installs it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from epp.rpc.server import RpcServer


async def test_h2spec_finds_nothing() -> None:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = caches / "gorgo-epp" / "h2spec-v2.2.1" / "h2spec"
    if not program.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no h2spec: run `make h2spec`")
    server = RpcServer({}, max_receive_bytes=1000, max_send_bytes=1000)
    host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
    # By default its HEADERS frame "that exceeds SETTINGS_MAX_FRAME_SIZE" has 17 KB, which we announce that we take.
    flags = ("-h", host, "-p", port, "-o", "10", "--strict", "--max-header-length", "8000")
    child = await asyncio.create_subprocess_exec(str(program), *flags, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(child.communicate(), 100)
    await server.stop(0)
    assert b", 0 skipped, 0 failed" in said, said.decode()[-3000:]
