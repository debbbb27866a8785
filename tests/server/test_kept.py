"""Tasks that a fault does not end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epp import threads
from epp.threads import kept

if TYPE_CHECKING:
    import pytest


async def test_work_that_fails_is_counted_and_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "AGAIN_S", 0.0)
    begun, faults = list[int](), list[None]()

    async def work() -> None:
        begun.append(len(begun))
        await asyncio.sleep(0)
        if len(begun) < 3:
            raise KeyError("of a peer's")

    await kept("share", work, lambda: faults.append(None))
    assert len(begun) == 3
    assert len(faults) == 2
