"""Attacks with a verdict of their own: what a pool, a page or a network does to pickers, beside the floods."""

from __future__ import annotations

import asyncio
from math import inf
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import TYPE_CHECKING, NamedTuple

from tests.attacks import jump, page, panic, places, queue
from tests.attacks.pickers import alone

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable


#: As long as kubelet waits by default.
_PROBE_MS = 1000.0
_GROWTH_BYTES = 32 << 20
#: Memory that a picker may have, and what it may take of it.
_MEMORY_BYTES, _TAKEN_BYTES = 512 << 20, 384 << 20
#: Requests that wait, in what time they have to come, and what one may take beside its body: 8 KB, and what
#: connections and allocators keep of what has come.
_QUEUED, _QUEUE_S, _WAITER_BYTES = 10_000, 80.0, 12 << 10


class Check(NamedTuple):
    """What is done, and what does it and returns a figure as text, with what is wrong (empty for nothing)."""

    what: str
    run: Callable[[], tuple[str, str]]


def _answers(seen: Counter[int]) -> tuple[str, str]:
    failed = seen.total() - seen[200]
    return (
        f"{failed} of {seen.total()} requests failed, limit 0",
        f"statuses {dict(seen)}" if failed else "",
    )


def _places() -> tuple[str, str]:
    slowest_ms = places.slowest_ms(2600)
    late = [name for name, ms in slowest_ms.items() if ms > _PROBE_MS]
    figures = ", ".join(f"{name} {ms:.0f} ms" for name, ms in slowest_ms.items())
    return f"slowest probe: {figures}, limit {_PROBE_MS:g}", f"late: {', '.join(late)}" if late else ""


def _page() -> tuple[str, str]:
    statuses, slowest_ms, grown_bytes = page.asked()
    taken = sum(status < 400 for status in statuses)
    problems = [
        f"{taken} taken" if taken else "",
        f"/livez {slowest_ms:.0f} ms" if slowest_ms > _PROBE_MS else "",
        f"{grown_bytes >> 20} MiB more" if grown_bytes > _GROWTH_BYTES else "",
    ]
    figures = f"{taken} of {len(statuses)} hostile requests taken, limit 0; /livez beside opinions {slowest_ms:.0f} ms"
    limits = f"limit {_PROBE_MS:g}; {grown_bytes >> 20} MiB more, limit {_GROWTH_BYTES >> 20}"
    return f"{figures}, {limits}", "; ".join(filter(None, problems))


def _small_memory() -> tuple[str, str]:
    usual = getrlimit(RLIMIT_DATA)
    setrlimit(RLIMIT_DATA, (_MEMORY_BYTES, usual[1]))  # what is started has it, too
    with alone(request={}) as rig:
        setrlimit(RLIMIT_DATA, usual)
        row = rig.run("partial-bodies", seconds=5.0, connections=8)
    most, failed = row.rss_bytes[1], len(row.failures)
    figures = f"{failed} calls failed, limit 0; {most >> 20} MiB, limit {_TAKEN_BYTES >> 20}"
    return figures, row.cut_short or "beyond a limit" * (failed > 0 or most > _TAKEN_BYTES)


def _queue() -> tuple[str, str]:
    row, most, each_bytes, gone_s = queue.waited(_QUEUED, _QUEUE_S)
    shown = ", ".join(f"{name} p99 {row.percentile(name, 99):.0f}" for name in row.ms)
    figures = f"{most:,.0f} waited, {each_bytes / 1024:.1f} KB each; {shown} ms; gone after {gone_s:.1f} s"
    problems = [
        row.cut_short,
        f"{len(row.failures)} failed" if row.failures else "",
        f"limit {_WAITER_BYTES >> 10} KB" if each_bytes > _WAITER_BYTES else "",
        f"of {_QUEUED:,}" if most < _QUEUED else "",
        "who left waits on" if gone_s == inf else "",
    ]
    return figures, "; ".join(filter(None, problems))


CHECKS = {
    "queue": Check(
        "10,000 requests that find no room, beside others that do; then all leave at once", _queue
    ),
    "panic": Check(
        "requests through an Envoy to a pool of 300 dead endpoints and 3 good ones",
        lambda: _answers(asyncio.run(panic.statuses(400, dead=300))),
    ),
    "page": Check("foreign hosts and origins, a compressed body of 200 MB, 100 opinions at once", _page),
    "time-jump": Check(
        "requests while the picker's wall clock jumps by an hour and back",
        lambda: _answers(asyncio.run(jump.seen())),
    ),
    "small-memory": Check(
        "bodies that do not end, at the default budget in 512 MiB of memory", _small_memory
    ),
    "held-places": Check("/livez and /readyz while 2,600 slow clients or readers hold listen.http", _places),
}
