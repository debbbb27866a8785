"""Let the steps of a request wait without knowing how.

A request's way (`epp.request.director.Director.direct`) is a coroutine that most often ends without having
waited. It yields nothing but `Wait`s, so that it needs no task and no event loop until then; whoever runs it
does the waiting.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

_T = TypeVar("_T")
#: A request's steps: they yield waits, are sent the results, and return an answer.
Steps = Coroutine["Wait[Any]", Any, Any]


class Wait(Generic[_T]):
    """Something that a step waits for; its result is None where there was no waiting.

    Args:
        start: begins to wait.
        cancel: gives up what is waited for.
        held_bytes: what the request keeps in memory meanwhile, beside its body.
        longest_s: time that the proxy is asked for; 0 for what any proxy waits unasked.
    """

    __slots__ = ("cancel", "held_bytes", "longest_s", "start")

    def __init__(
        self,
        start: Callable[[], Awaitable[_T]],
        cancel: Callable[[], object],
        *,
        held_bytes: int,
        longest_s: float = 0.0,
    ) -> None:
        self.start, self.cancel = start, cancel
        self.held_bytes, self.longest_s = held_bytes, longest_s

    def __await__(self) -> Generator[Wait[_T], _T | None, _T | None]:
        """Yield this, and return what is sent."""
        return (yield self)


def at_once(steps: Coroutine[Wait[Any], Any, _T]) -> _T:
    """Run steps to their end without waiting for anything."""
    try:
        while True:
            steps.send(None).cancel()
    except StopIteration as ended:
        answer: _T = ended.value
        return answer


async def in_time(steps: Coroutine[Wait[Any], Any, _T]) -> _T:
    """Run steps to their end, waiting wherever they do."""
    result: Any = None
    try:
        while True:
            result = await steps.send(result).start()
    except StopIteration as ended:
        answer: _T = ended.value
        return answer
