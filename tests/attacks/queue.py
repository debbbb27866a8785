"""10,000 requests that wait for engines without room, beside requests of another model that have room."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.config.pool import EndpointSpec
from tests.attacks.floods import BUSY_MODEL, PRIORITIES, QUEUED_BYTES
from tests.attacks.pickers import alone, page
from tests.kit.replicas import MODEL

if TYPE_CHECKING:
    from tests.attacks.rig import Row

_SIZE, _LOOK_S = "llm_d_epp_flow_control_queue_size", 0.1
_SECTIONS: dict[str, Any] = {
    "queue": {
        "enabled": True,
        "ttl_s": 120,
        "max_requests": 10_000,
        "priorities": {f"p{at}": at + 1 for at in range(PRIORITIES)},
    },
    "request": {"max_held_body_bytes": 1 << 30},
}


class Waited(NamedTuple):
    """What became of them.

    Attributes:
        row: what peers that behave saw meanwhile.
        most: how many waited at once.
        each_bytes: what the picker's memory grew by for each, beside its body.
        gone_s: how long it took until none waited, once they had begun to leave.
    """

    row: Row
    most: float
    each_bytes: float
    gone_s: float


def waited(count: int, seconds: float) -> Waited:
    """Let requests wait, and their clients leave all at once as soon as so many do.

    Args:
        count: requests that wait. A connection brings a thousand; some of the first find room.
        seconds: after which they leave in any case.
    """
    pool = [
        EndpointSpec(address=f"10.0.{at}.7:8000", models=[BUSY_MODEL if at < 3 else MODEL]) for at in range(6)
    ]
    seen, full, over = list[tuple[float, float]](), threading.Event(), threading.Event()
    with alone(pool=pool, **_SECTIONS) as rig:

        def look() -> None:
            lines = list[str]()
            while not over.wait(_LOOK_S):
                with suppress(OSError):  # busy
                    lines = page(rig.http, "metrics").decode().splitlines()
                size = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_SIZE))
                seen.append((time.monotonic(), size))
                if size >= count:
                    full.set()

        looking = threading.Thread(target=look)
        looking.start()
        row = rig.run("queue", seconds=seconds, connections=count // 1_000 + 2, done=full.is_set)
        over.set()
        looking.join()
    most = max(size for _, size in seen)
    before, peak = row.rss_bytes
    full_s = max(at_s for at_s, size in seen if size >= 0.9 * most)
    empty_s = min((at_s for at_s, size in seen if at_s > full_s and not size), default=inf)
    return Waited(row, most, (peak - before) / max(most, 1.0) - QUEUED_BYTES, empty_s - full_s)
