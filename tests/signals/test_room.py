from __future__ import annotations

import numpy as np

from epp.signals.metrics_text import EngineSample
from epp.signals.room import UNLIMITED, Room


def places(room: Room, promised: float) -> float:
    return float(room.places(np.array([0]), np.array([promised]))[0])


def test_an_engine_is_full_with_twice_the_largest_batch_seen() -> None:
    room = Room()
    room.resize(1)
    assert places(room, 50.0) == UNLIMITED, "nothing ever waited"
    room.observe(0, EngineSample("", 8.0, 3.0), 0.0)
    assert [places(room, promised) for promised in (11.0, 16.0, 17.0)] == [5.0, 0.0, 0.0]
    room.observe(0, EngineSample("", 12.0, 0.0), 2.0)
    assert places(room, 6.0) == 18.0, "more fit than was thought"
    for second in range(3, 600):
        room.observe(0, EngineSample("", 5.0, 1.0), float(second))
    assert 0.0 < places(room, 10.0) < 0.2, "longer prompts: fewer fit"
    room.observe(0, EngineSample("", None, None), 601.0)
    room.forget(0)
    assert places(room, 5.0) == UNLIMITED
