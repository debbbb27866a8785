"""`epp serve` whose event loop hangs for a minute at SIGUSR1."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING
from unittest import mock

from epp.cli import main
from epp.server.app import App

if TYPE_CHECKING:
    from collections.abc import Callable

HANGING = (sys.executable, "-m", "tests.kit.hanging")


def hang() -> None:
    """Keep the loop's thread from doing anything else, once the log says so."""
    logging.getLogger("epp").warning("it hangs")
    time.sleep(60)


class HangingApp(App):
    """The picker."""

    async def start(self, on_stall: Callable[[float, str], None] | None = None) -> None:
        """Start it."""
        await super().start(on_stall)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hang)


if __name__ == "__main__":
    with mock.patch("epp.server.command.App", HangingApp):
        sys.exit(main())
