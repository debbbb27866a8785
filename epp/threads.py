"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
