"""Attacks with a verdict of their own: what a pool, a page or a network does to pickers, beside the floods."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.attacks import panic, places

if TYPE_CHECKING:
    from collections.abc import Callable


#: As long as kubelet waits by default.
_PROBE_MS = 1000.0


class Check(NamedTuple):
    """What is done, and what does it and returns a figure as text, with what is wrong (empty for nothing)."""

    what: str
    run: Callable[[], tuple[str, str]]


def _panic() -> tuple[str, str]:
    failed, seen = panic.failed()
    return (
        f"{failed} of {sum(seen.values())} requests failed, limit 0",
        f"statuses {dict(seen)}" if failed else "",
    )


def _places() -> tuple[str, str]:
    slowest_ms = places.slowest_ms(2600)
    late = [name for name, ms in slowest_ms.items() if ms > _PROBE_MS]
    figures = ", ".join(f"{name} {ms:.0f} ms" for name, ms in slowest_ms.items())
    return f"slowest probe: {figures}, limit {_PROBE_MS:g}", f"late: {', '.join(late)}" if late else ""


CHECKS = {
    "panic": Check("requests through an Envoy to a pool of 300 dead endpoints and 3 good ones", _panic),
    "held-places": Check("/livez and /readyz while 2,600 slow clients or readers hold listen.http", _places),
}
