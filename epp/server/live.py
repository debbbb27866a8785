"""What of a picker its live page shows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from socket import gethostname
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.console.history import History
    from epp.feeds.learned import Learning
    from epp.request.recent import RecentDecisions
    from epp.schedule.program_gate import ProgramGate
    from epp.schedule.queue import Waiter
    from epp.schedule.scheduler import Scheduler


@dataclass(slots=True)
class Live:
    """A picker as its live page sees it. Made on the picker's loop.

    Attributes:
        scheduler: decides where requests go.
        recent: its newest decisions.
        clock: the time.
        link: the way to other pickers, None without any.
        learning: its learned policies, None without any.
        history: its last hour.
        links: titles and addresses of what an operator reads beside the page.
        waiting: lists the requests that wait.
        programs: holds turns of agents, None where nothing does.
        loop: the picker's.
        asking: opinions that are being made, by policy.
        one_opinion: held while one is: each takes a thread for seconds.
    """

    scheduler: Scheduler
    recent: RecentDecisions
    clock: Clock
    link: Link | None
    learning: Learning | None
    history: History
    links: Mapping[str, str]
    waiting: Callable[[], list[Waiter]] = list
    programs: ProgramGate | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    asking: dict[str, asyncio.Task[dict[str, Any]]] = field(default_factory=dict)
    one_opinion: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        """Name this picker, for people."""
        return gethostname() if self.link is None else self.link.name

    def ignore(self, reason: str) -> None:
        """Count a message of another picker that is not taken."""
        if self.link is not None:
            self.link.index_sync.counts.ignored[reason] += 1
