"""Work beside the requests: blocking work beside the event loop, tasks that go on, signals that end all."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)

#: Before work that failed is begun anew.
AGAIN_S = 1.0


async def in_daemon_thread(work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Run blocking work in a daemon thread of its own and return its result.

    File systems may never answer. The threads of `asyncio.to_thread` are few, shared, and joined when the
    interpreter exits, so work that hangs there would stop other work and the exit.

    Raises:
        OSError: no thread can be started.
        BaseException: what the work raises.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that is cancelled abandons the thread

    def run() -> None:
        try:
            value = work(*arguments)
        except BaseException as error:  # noqa: BLE001  # raised in the caller
            result.set_exception(error)
        else:
            result.set_result(value)

    try:
        threading.Thread(target=run, name="blocking", daemon=True).start()
    except RuntimeError as error:  # a container's limit of processes, perhaps for a moment
        raise OSError(str(error)) from error
    return await asyncio.wrap_future(result)


async def kept(
    name: str, work: Callable[[], Coroutine[Any, Any, None]], on_fault: Callable[[], None]
) -> None:
    """Do work until it ends without an exception: one that fails is logged, counted and begun anew.

    Args:
        name: of the work, for the log.
        work: begins it.
        on_fault: called at each exception.
    """
    while True:
        try:
            return await work()
        except Exception:
            log.exception("background task %s failed; it starts again in %g s", name, AGAIN_S)
            on_fault()
            await asyncio.sleep(AGAIN_S)


class Tasks:
    """Named tasks that live and die with the server.

    Attributes:
        failed: tasks that ended by an exception, which readiness reports, until they are started again or
            cancelled.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.failed: set[str] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background, under a name that no running task has."""
        self.failed.discard(name)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._done)

    def cancel(self, name: str) -> None:
        """End one task, without waiting; its name is free at once. An unknown name is fine."""
        self.failed.discard(name)
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

    def _done(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        self._ending.discard(task)
        wanted = self._tasks.get(name) is task
        if wanted:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            if wanted:
                self.failed.add(name)
            log.error("background task %s died", name, exc_info=error)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Choose SIGTERM, SIGINT, and a closing terminal's SIGHUP, but where it is ignored (`nohup`)."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
