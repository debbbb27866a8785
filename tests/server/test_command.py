"""`epp serve`: how the process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from epp.cli import main
from epp.server.command import serve

if TYPE_CHECKING:
    from pathlib import Path


def test_a_start_that_takes_long_ends_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers come from the hub then; a container's first process has no other way to end."""
    (tmp_path / "epp.yaml").write_text("{}")
    before = signal.getsignal(signal.SIGTERM)

    def slow(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr("epp.server.command.App", slow)
    monkeypatch.setattr("epp.server.command.configure", lambda _: None)
    begun_s = time.monotonic()
    # Ignored, as it is by the first process of a container: without the picker's own word it would sleep on.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as caught:
            main(["serve", "--config", str(tmp_path / "epp.yaml")])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 128 + signal.SIGTERM
    assert time.monotonic() - begun_s < 30


@pytest.mark.parametrize("installed", [True, False])
def test_a_policy_that_a_sidecar_tunes_says_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: bool
) -> None:
    (tmp_path / "epp.yaml").write_text("policy: {name: gorgo-hillclimb}")
    monkeypatch.setattr("epp.server.command.entry_points", lambda **_: ["lab"] if installed else [])
    monkeypatch.setattr("epp.server.command.configure", lambda _: None)
    words = [
        "serve",
        "--config",
        str(tmp_path / "epp.yaml"),
        "--workers",
        "0",
    ]  # refused, once it has said so
    assert main(words) != 0
    assert ("pip install gorgo-epp-lab" in caplog.text) is not installed


class Steady:
    """An application that says what happens to it."""

    def __init__(self) -> None:
        self.started, self.stopped = asyncio.Event(), asyncio.Event()

    async def start(self, _on_stall: object) -> None:
        self.started.set()

    async def stop(self) -> None:
        self.stopped.set()


async def test_a_terminal_that_closes_is_drained_for() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored, which a picker respects
    app: Any = Steady()
    served = asyncio.ensure_future(serve(app))
    await app.started.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    await served
    signal.signal(signal.SIGHUP, before)
    assert app.stopped.is_set()
