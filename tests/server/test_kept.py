"""Tasks and threads that a fault does not end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from epp import threads
from epp.records import recorder
from epp.records.writer import RecordWriter
from epp.threads import kept
from epp.types import Endpoint
from tests.kit.apps import app_of, ask
from tests.kit.shown import shown
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_work_that_fails_is_counted_and_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "AGAIN_S", 0.0)
    app, begun, faults = app_of(tmp_path), list[int](), list[None]()

    async def work() -> None:
        begun.append(len(begun))
        await asyncio.sleep(0)
        if len(begun) < 3:
            raise KeyError("of a peer's")

    await kept("share", work, lambda: faults.append(None))
    assert len(begun) == 3
    assert len(faults) == 2
    begun.clear()
    app._keep("share", work)
    await until(lambda: len(begun) == 3)
    assert shown(app.metrics, "epp_faults_total", part="task") == 2


async def test_records_that_a_failing_recorder_held_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RESTART_S", 0.01)
    monkeypatch.setattr(RecordWriter, "append", lambda *_: sys.exit())  # what ends threads
    app = app_of(tmp_path, records={"folder": "records"})
    app.scheduler.set_pool([Endpoint("10.0.0.1:80")], 0.0)
    ask(app)
    await until(lambda: shown(app.metrics, "epp_faults_total", part="recorder") == 1)
    assert shown(app.metrics, "epp_records_dropped_total") == 1
    assert app._recorder is not None
    app._recorder.close()
