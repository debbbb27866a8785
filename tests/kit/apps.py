"""Pickers without listeners, asked in the test's process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from epp.config.load import parse_config
from epp.extproc.types import HttpRequest
from epp.server.app import App
from epp.server.process import SystemClock
from tests.kit.requests import Decided, decide

if TYPE_CHECKING:
    from pathlib import Path

    from epp.clock import Clock


def app_of(folder: Path, clock: Clock | None = None, **config: Any) -> App:
    """A picker with these sections of a configuration in this folder."""
    text = json.dumps(config)
    return App(parse_config(text, "epp.yaml"), folder, "epp.yaml", clock or SystemClock())


def ask(app: App, text: str = "hello", *, model: str = "chat", **headers: str) -> Decided:
    """Have a chat decided."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    found = decide(app.director, HttpRequest("POST", "/v1/chat/completions", names, body))
    assert isinstance(found, Decided), found
    return found


def rewrite(app: App, path: Path, content: bytes | str | None) -> None:
    """Replace a watched file, or remove it, and have it looked at."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for file in app._files:
        if file.path == path:
            file.check()
