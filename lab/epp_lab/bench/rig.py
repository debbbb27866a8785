"""A picker as `epp serve` builds it, without its sockets, over endpoints that do not exist."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epp.config.load import parse_config
from epp.extproc.types import HttpRequest, LocalReply
from epp.schedule.waiting import at_once
from epp.server.app import App
from epp.server.process import SystemClock
from epp.signals.metrics_text import EngineSample
from epp_lab.bench.processes import pool_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Headers as Envoy sends them.
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "inference.example",
    ":path": "/v1/chat/completions",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 1.60.0",
    "authorization": "Bearer 0123456789abcdef0123456789abcdef",
    "x-forwarded-for": "192.0.2.17",
    "x-request-id": "0d9b3c0a-7f0e-4e0e-9d8b-1f8f8e5b7d11",
}


def request(body: bytes) -> HttpRequest:
    """Make a chat request as the stream hands it to the core."""
    return HttpRequest("POST", HEADERS[":path"], HEADERS, body)


@contextmanager
def rig(endpoints: int, **sections: Any) -> Iterator[App]:
    """Build a picker; each endpoint has an RTT and engine metrics.

    Args:
        endpoints: size of the fleet.
        sections: of the configuration.
    """
    with TemporaryDirectory(prefix="epp-bench-") as name:
        folder = Path(name)
        (folder / "secret").write_text("a secret of benchmarks")
        config = {
            "listen": {"max_connections": 64},
            "pool": {"warmup_s": 0},
            "prefix": {"secret_file": "secret", "capacity_tokens": 50_000_000},
            **sections,
        }
        clock = SystemClock()
        app = App(parse_config(json.dumps(config).encode(), "bench"), folder, "bench", clock)
        app.scheduler.set_pool([spec.endpoint() for spec in pool_of(endpoints)], clock.mono_s())
        datastore = app.scheduler.datastore
        for slot, _ in datastore.members:
            datastore.rtt.observe(slot, 20.0 + slot * 0.37, clock.mono_s())
            datastore.engine.update(slot, EngineSample("vllm", 3.0, 0.0, 0.4, 500_000, 1.7e9), clock.mono_s())
        try:
            yield app
        finally:
            app.director.outcomes.close()
            app._tokenizers.close()  # noqa: SLF001
            if app._recorder is not None:  # noqa: SLF001
                app._recorder.close()  # noqa: SLF001


def decide(app: App, body: bytes) -> None:
    """Decide a request and end it, so that its endpoint has the prompt cached."""
    pick = at_once(app.director.direct(request(body), since_s=time.monotonic()))
    if isinstance(pick, LocalReply):
        raise TypeError(f"a request was refused: {pick}")
    app.scheduler.end(pick.decision_id, "stream-end", time.monotonic())
