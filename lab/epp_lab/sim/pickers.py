"""Several pickers before one simulated fleet: who is asked, and the messages between them.

Owns their links. Messages are those of production (`epp.cluster.index_sync`), late and lost as asked, in
virtual time. Each picker probes and scrapes by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.cluster.index_sync import WHOLE_S, IndexSync
from epp.cluster.messages import Group
from epp.keyed_uniform import keyed_uniform
from epp_lab.sim.loop import Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.schedule.late_binding import LateBinding
    from epp.schedule.scheduler import Scheduler
    from epp_lab.sim.loop import Loop
    from epp_lab.sim.scenario import PickerOptions

_GROUP = Group("simulated", "", "")


class VirtualClock:
    """The loop's time; the wall's is the same."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def mono_s(self) -> float:
        """Return seconds since the start."""
        return self._loop.now_ms / 1e3

    wall_s = mono_s


def comes_past(options: PickerOptions, seed: int, decision_id: str) -> bool:
    """Tell whether a request comes past the pickers."""
    return keyed_uniform(seed, decision_id, "past") < options.past


class PickerGroup:
    """Pickers that share what the options say.

    Args:
        pickers: all of them; the last is the one that requests come past the others by, if any do.
        options: what they share, and how messages travel.
        loop: virtual time.
        seed: of who is asked and of lost messages.

    Attributes:
        all: the pickers.
    """

    def __init__(self, pickers: Sequence[Scheduler], options: PickerOptions, loop: Loop, seed: int) -> None:
        self.all: Sequence[Scheduler] = pickers
        self._options, self._loop, self._seed = options, loop, seed
        self._links: dict[str, IndexSync] = {}
        self._messages = 0
        if options.count > 1 and options.share != "none":
            for number, scheduler in enumerate(pickers[: options.count]):
                self._link(f"p{number}", scheduler)

    def of(self, decision_id: str) -> Scheduler:
        """Return the picker that decides a request: any, as by a balancer that knows nothing of them."""
        if self._options.past and comes_past(self._options, self._seed, decision_id):
            return self.all[-1]
        count = self._options.count
        return self.all[int(count * keyed_uniform(self._seed, decision_id, "picker")) if count > 1 else 0]

    def share_queues(self, queues: Sequence[LateBinding | None]) -> None:
        """Let the pickers that share their load share what waits, too."""
        for link, queue in zip(self._links.values(), queues, strict=False):
            if queue is not None:
                link.share_queue(queue)

    @property
    def sent(self) -> tuple[int, int]:
        """Messages that they sent, and their bytes."""
        counts = [link.counts for link in self._links.values()]
        return sum(one.sent for one in counts), sum(one.sent_bytes for one in counts)

    def _link(self, name: str, scheduler: Scheduler) -> None:
        def publish(to: str, data: bytes) -> None:
            self._publish(name, to, data)

        def wake(in_s: float) -> None:
            self._loop.at(self._loop.now_ms + in_s * 1e3, Rank.SIGNAL, link.flush)

        link = self._links[name] = IndexSync(
            scheduler.datastore,
            _GROUP,
            name,
            VirtualClock(self._loop),
            publish=publish,
            wake=wake,
            load=self._options.share == "all",
        )
        self._loop.at(self._loop.now_ms, Rank.SIGNAL, self._each_second, link)

    def _each_second(self, link: IndexSync) -> None:
        link.flush()
        self._loop.at(self._loop.now_ms + WHOLE_S * 1e3, Rank.SIGNAL, self._each_second, link)

    def _publish(self, sender: str, to: str, data: bytes) -> None:
        self._messages += 1
        for name, link in self._links.items():
            key = f"{self._messages} {name}"
            lost = keyed_uniform(self._seed, key, "lost message") < self._options.loss
            if name != sender and to in ("", name) and not lost:
                self._loop.at(self._loop.now_ms + self._options.delay_ms, Rank.SIGNAL, link.receive, data)
