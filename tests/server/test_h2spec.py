"""What `h2spec` finds of the picker's own listener, where it is installed."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from epp.server.rpc_server import RpcServer


async def test_h2spec_finds_nothing() -> None:
    program = shutil.which("h2spec")
    if program is None:
        pytest.skip("h2spec is not installed (go install github.com/summerwind/h2spec/cmd/h2spec@latest)")
    server = RpcServer({}, max_receive_bytes=1000, max_send_bytes=1000)
    host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")

    async def failed(*arguments: str) -> set[str]:
        child = await asyncio.create_subprocess_exec(
            *(program, "-h", host, "-p", port, "-o", "10", *arguments), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await asyncio.wait_for(child.communicate(), 100)
        assert b" 0 skipped" in said, said.decode()[-3000:]
        return {line.strip() for line in said.decode().splitlines() if "\u00d7" in line}

    # This frame has 18 KB, but RFC 9113 section 4.2 has it that "the size of a frame payload is limited by the
    # maximum size that a receiver advertises", which is 256 KiB here. A frame that is longer gets the error.
    case = "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"
    assert await failed() == {f"\u00d7 3: {case}"}
    assert await failed("http2/4.2/3", "--max-header-length", "64000") == set()
    await server.stop(0)
