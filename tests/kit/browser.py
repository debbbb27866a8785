"""A headless Chromium, driven over its DevTools protocol: pages, keys, pictures, memory."""

from __future__ import annotations

import asyncio
import os
import shutil
from base64 import b64decode
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import pytest

from epp.envoy.child import Child
from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_START_S, _ANSWER_S = 240.0, 240.0
#: Keys that the browser itself acts on.
_KEYS: dict[str, dict[str, Any]] = {"Enter": {"text": "\r"}, "Escape": {"windowsVirtualKeyCode": 27}}


def chromium(folder: Path) -> Chromium:
    """A browser, not started; skips the calling test without one, which on CI is a failure."""
    try:
        return Chromium(folder)
    except EppError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


class Chromium:
    """One page: an async context manager.

    Args:
        folder: of its profile and log.
        size: of the window, in px.
        arguments: further ones of its command line.

    Raises:
        EppError: there is none on the PATH.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 800), *arguments: str) -> None:
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
        if program is None:
            raise EppError("no Chromium on the PATH: apt-get install chromium")
        self._profile, self._size = folder / "chromium", size
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={self._profile}",
            *arguments,
            "about:blank",
        ]
        self._child = Child("chromium", words, folder, (program,))
        self._exit, self._number = AsyncExitStack(), 0

    async def __aenter__(self) -> Self:
        """Start it."""
        async with AsyncExitStack() as started, asyncio.timeout(_START_S):
            await started.enter_async_context(self._child)
            port_file = self._profile / "DevToolsActivePort"
            await self._child.until(lambda: port_file.exists() and len(port_file.read_text().split()) == 2)
            http = await started.enter_async_context(aiohttp.ClientSession())
            port = port_file.read_text().split()[0]
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = [each for each in await answer.json() if each["type"] == "page"]
            url = page["webSocketDebuggerUrl"]
            self._socket = await started.enter_async_context(http.ws_connect(url, max_msg_size=0))
            width, height = self._size
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            await self.call("Emulation.setDeviceMetricsOverride", **metrics)
            self._exit = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        await self._exit.aclose()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result.

        Raises:
            EppError: it failed.
        """
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(_ANSWER_S):
            while (answer := await self._socket.receive_json()).get("id") != self._number:
                pass
        if "error" in answer:
            raise EppError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        """Go to a page."""
        await self.call("Page.navigate", url=url)

    async def look(self, expression: str) -> Any:
        """Evaluate JavaScript, promises awaited.

        Raises:
            EppError: it threw.
        """
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise EppError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, expression: str, within_s: float = 240.0) -> None:
        """Wait until JavaScript gives true.

        Raises:
            EppError: it does not in time.
        """
        try:
            async with asyncio.timeout(within_s):
                while not await self.look(expression):  # it holds in another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise EppError(f"did not come to hold: {expression}") from None

    async def press(self, key: str) -> None:
        """Press a key, as ``KeyboardEvent.key`` names it."""
        told: dict[str, Any] = {"text": key} if len(key) == 1 else _KEYS.get(key, {})
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **told)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def dark(self, *, on: bool) -> None:
        """Prefer dark, or light."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def screenshot(self) -> bytes:
        """Take a picture of what is seen, as WebP."""
        return b64decode((await self.call("Page.captureScreenshot", format="webp", quality=80))["data"])

    async def heap(self) -> tuple[int, int]:
        """Collect garbage; bytes of the JavaScript heap in use, and nodes."""
        await self.call("HeapProfiler.collectGarbage")
        used = await self.call("Runtime.getHeapUsage")
        counters = await self.call("Memory.getDOMCounters")
        return int(used["usedSize"]), int(counters["nodes"])
