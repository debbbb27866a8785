"""`epp up` as a process of its own, and a client of it."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from epp.envoy.child import Child
from tests.kit.envoy import require_envoy
from tests.kit.ports import free_ports
from tests.kit.replicas import CHAT, MODEL, chat_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Up(Child):
    """The process, once it takes requests.

    Attributes:
        url: that it names for clients.
    """

    url = ""

    async def ready(self) -> None:
        """Wait until it says where it takes requests, and all that it says then."""
        async with asyncio.timeout(240):
            await self.until(lambda: "Ctrl-C ends everything\n" in self.log())
        self.url = re.findall(r"Ready: (\S+)", self.log())[0]

    async def ask(self, model: str = MODEL, text: str = "hello") -> tuple[int, str]:
        """Send a chat; its status, and the replica that says that it served."""
        body = {**chat_body(text, max_tokens=4), "model": model}
        async with aiohttp.ClientSession() as http, http.post(self.url + CHAT, json=body) as answer:
            return answer.status, answer.headers.get("x-served-by", "")

    def children(self) -> dict[str, int]:
        """Pids of its children: ``picker`` and ``envoy``."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in map(int, listed)}
        return {"envoy" if b"--admin-address-path" in name else "picker": pid for pid, name in names.items()}


def own_ports() -> list[str]:
    """Name ports that no other test takes: the usual ones are for the tests of `epp up` itself."""
    first = free_ports(3)
    options = ("--listen", "--http", "--grpc")
    return [word for n, option in enumerate(options) for word in (option, f"127.0.0.1:{first + n}")]


@asynccontextmanager
async def running_up(folder: Path, *words: str) -> AsyncIterator[Up]:
    """Run it with these words of its command line."""
    require_envoy()
    async with Up("up", ["up", *words], folder) as up:
        await up.ready()
        yield up
