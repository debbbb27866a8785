from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from epp.feeds.model_lists import MOST_WAITING, ModelLists

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def running(lists: ModelLists) -> AsyncIterator[ModelLists]:
    task = asyncio.ensure_future(lists.run())
    yield lists
    task.cancel()


class Engine:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()

    async def ask(self) -> None:
        self.asked += 1
        await self.answers.wait()


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_comes_while_engines_are_asked_waits_for_the_next_time() -> None:
    engine = Engine()
    async with running(ModelLists()) as lists:
        lists.engines["a:1"] = engine.ask
        first = lists.wait_for("late")
        await settled()
        second = lists.wait_for("late")
        assert first is not None
        assert second is not None
        engine.answers.set()
        await first
        assert not second.done()
        await second
    assert engine.asked == 2


async def test_a_model_that_is_served_ends_the_wait_whoever_has_not_answered() -> None:
    engine = Engine()
    async with running(ModelLists()) as lists:
        lists.engines["a:1"] = engine.ask
        late, unknown = lists.wait_for("late"), lists.wait_for("unknown")
        assert late is not None
        assert unknown is not None
        await settled()
        lists.changed({"late"}.__contains__)
        assert (late.done(), unknown.done()) == (True, False)


async def test_few_wait_and_nobody_where_nobody_is_asked() -> None:
    lists = ModelLists()
    assert lists.wait_for("late") is None
    lists.engines["a:1"] = Engine().ask
    waiting = [lists.wait_for("late") for _ in range(MOST_WAITING)]
    assert all(waiting)
    assert lists.wait_for("late") is None
    assert waiting[0] is not None
    waiting[0].cancel()
    await settled()
    assert lists.wait_for("late") is not None


async def test_ranks_of_one_address_are_asked_once() -> None:
    engine = Engine()
    engine.answers.set()
    async with running(ModelLists()) as lists:
        lists.engines |= dict.fromkeys(("a:1@0", "a:1@1"), engine.ask)
        waiting = lists.wait_for("late")
        assert waiting is not None
        await waiting
    assert engine.asked == 1
