"""Work beside the requests: blocking work beside the event loop, tasks that go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

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
