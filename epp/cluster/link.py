"""One picker's link to its peers, whatever carries it: when it sends, and who leads as far as it heard.

Owns the timer of `IndexSync`. What carries messages is a subclass's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from epp.cluster.index_sync import WHOLE_S, IndexSync
from epp.cluster.leading import Leading
from epp.wire import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.clock import Clock
    from epp.cluster.messages import Group
    from epp.signals.datastore import Datastore


#: Questions of live pages that are answered in a second: 32 open pages ask twice.
MAX_QUESTIONS = 64
#: Of what other pickers answer in a second, compressed: two frames of some 10 KB from each, 200 KB where
#: there are a thousand endpoints.
MAX_ANSWER_BYTES = 8 * 1024 * 1024


class Link(ABC):
    """Shares while `run` runs.

    Args:
        group: whom this picker understands.
        datastore: its signals.
        clock: the time.
        origin: name of this process, another one at each start.
        term: the highest that this picker knew before it started; None of one that never leads.
        second: pickers that name prompts by another key, and are understood but for that; None for none.

    Attributes:
        group: whom this picker understands.
        index_sync: what is said and heard.
        leading: who leads.
        dropped: messages that could not be sent.
        on_question: takes what the live page of another picker asks, and what sends it an answer; None where
            this picker has no answers.
        on_answer: takes answers to `ask`.
    """

    def __init__(
        self,
        group: Group,
        datastore: Datastore,
        clock: Clock,
        origin: str,
        *,
        term: int | None = None,
        second: Group | None = None,
    ) -> None:
        self.group, self._clock, self._origin = group, clock, origin
        self._timer: asyncio.Handle | None = None
        #: When it fires, which uvloop's handles of the next turn cannot say.
        self._timer_s = 0.0
        self.dropped = 0
        self.on_question: Callable[[str, Callable[[bytes], object]], None] | None = None
        self._questions = self._answer_bytes = 0  # of this second
        self.on_answer: Callable[[bytes], None] = lambda _: None
        self.leading = Leading(origin, clock.mono_s(), term or 0)
        if term is None:
            self.leading.resign()
        self.index_sync = IndexSync(
            datastore,
            group,
            origin,
            clock,
            publish=self._publish,
            wake=self._wake,
            leading=self.leading,
            second=second,
        )

    @property
    def name(self) -> str:
        """Name this process, for people."""
        place, _, random = self._origin.rpartition("-")
        return f"{place}-{random[:4]}"

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether peers can be reached."""

    @abstractmethod
    async def run(self) -> None:
        """Share until cancelled."""

    async def find(self, decision_id: str) -> bytes:  # noqa: ARG002  # of subclasses that can ask
        """Ask the others for a decision; JSON, empty where none answers."""
        return b""

    @abstractmethod
    def ask(self, question: bytes) -> None:
        """Ask the live pages of all others something; `on_answer` takes what they say."""

    @abstractmethod
    def _publish(self, to: str, data: bytes) -> None:
        """Send a message to a peer, ``""`` for all."""

    def _question(self, question: bytes, reply: Callable[[bytes], object]) -> None:
        """Answer the live page of another picker, while there is time for it in this second.

        Raises:
            UnreadableError: it is no question.
        """
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            self.index_sync.counts.ignored["too many questions"] += 1
        elif self.on_question is not None:
            self.on_question(text(question), reply)

    def _answer(self, data: bytes) -> None:
        self._answer_bytes += len(data)
        if self._answer_bytes > MAX_ANSWER_BYTES:
            self.index_sync.counts.ignored["too many answers"] += 1
        else:
            self.on_answer(data)

    async def _share(self) -> None:
        try:
            while True:
                self.leading.tick(self._clock.mono_s(), connected=self.connected)
                self.index_sync.flush()
                self._questions = self._answer_bytes = 0
                self._tick()
                await asyncio.sleep(WHOLE_S)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _tick(self) -> None:  # noqa: B027  # of subclasses that count by the second
        """Let a second pass."""

    def _wake(self, in_s: float) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + in_s
        if self._timer is None or self._timer_s > at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = loop.call_later(in_s, self._flush), at_s

    def _flush(self) -> None:
        self._timer = None
        self.index_sync.flush()
