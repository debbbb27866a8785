"""Background tasks with owners: every task has a name, and one that dies is seen.

Owns the list of running tasks. A task that ends by an exception is logged with its name and stays in
`failed`, which readiness reports, until it is started again or wanted no more; none is silently lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Tasks:
    """A group of named tasks that live and die with the server."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.failed: dict[str, str] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background.

        Raises:
            ValueError: a task of that name is running.
        """
        if name in self._tasks:
            work.close()
            raise ValueError(f"task {name!r} is already running")
        self.failed.pop(name, None)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._done)

    def cancel(self, name: str) -> None:
        """End one task, without waiting; its name is free at once. An unknown name is fine."""
        self.failed.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            self._ending.add(task)
            task.cancel()

    async def stop_all(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = [*self._tasks.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def names(self) -> list[str]:
        """Names of the running tasks."""
        return list(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        self._ending.discard(task)
        wanted = self._tasks.get(name) is task
        if wanted:
            del self._tasks[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if wanted:
                self.failed[name] = repr(error)
            log.error("background task %s died", name, exc_info=error)
