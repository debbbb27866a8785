"""The two pools of samples: the newest, and older ones that were chosen because they differ.

Owns which samples are held. The newest `recent` are all kept; what falls out of them waits until the next
round, which chooses among it and the older ones that are kept already (`epp.learn.reward_model.coreset`).
Source [L],
section 4.3.2. Changed in place by its methods alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from epp.learn.reward_model.samples import Sample

#: While nothing is trained, so many times the replay pool may wait; then the oldest go.
_WAITING = 4


class Pools:
    """Samples in the order of their arrival.

    Args:
        recent: newest samples kept.
        replay: older ones kept.
        samples: what an earlier life held, recent ones.
        replayed: likewise, chosen ones and those that wait for the choice.
    """

    def __init__(
        self,
        recent: int,
        replay: int,
        samples: Iterable[Sample] = (),
        replayed: Iterable[Sample] = (),
    ) -> None:
        self._recent, self._replay = recent, replay
        self.recent: deque[Sample] = deque()
        #: Chosen ones, then those that fell out of `recent` since the last choice.
        self.older: list[Sample] = list(replayed)
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """One more; the oldest recent one makes room."""
        self.recent.append(sample)
        if len(self.recent) <= self._recent:
            return
        gone = self.recent.popleft()
        if self._replay:
            self.older.append(gone)
            if len(self.older) > _WAITING * self._replay:
                del self.older[0]

    def choose(self, pick: Callable[[Sequence[Sample], int], NDArray[np.intp]]) -> None:
        """Bring the older ones down to their number.

        Args:
            pick: indices of that many of them.
        """
        if len(self.older) > self._replay:
            kept = np.sort(pick(self.older, self._replay))
            self.older = [self.older[index] for index in kept]

    def training(self, held_out: int) -> tuple[list[Sample], list[Sample]]:
        """What to train on, and the newest that are held out of it.

        Args:
            held_out: how many, no more than half of the recent ones.
        """
        recent = list(self.recent)
        held = min(held_out, len(recent) // 2)
        split = len(recent) - held
        return [*self.older, *recent[:split]], recent[split:]
