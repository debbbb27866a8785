"""Attacks with a verdict of their own: what a pool, a page or a network does to pickers, beside the floods."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.attacks import panic

if TYPE_CHECKING:
    from collections.abc import Callable


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


CHECKS = {"panic": Check("requests through an Envoy to a pool of 300 dead endpoints and 3 good ones", _panic)}
