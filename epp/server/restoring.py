"""One answer whose model's name is to be put back, watched so that it is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.types import BodyRewriter


class Restoring:
    """One answer whose model's name is to be put back.

    Args:
        count: called once with ``restored``, or with why the name stays: ``encoded``, ``content-type``,
            ``no-name``.
        make: from the answer's headers to what changes its body, as `Pick.rewrite_response`.
    """

    __slots__ = ("_count", "_inner", "_make", "_restored")

    def __init__(
        self, count: Callable[[str], None], make: Callable[[Mapping[str, str]], BodyRewriter | None]
    ) -> None:
        self._count, self._make = count, make
        self._inner: BodyRewriter | None = None
        self._restored = False

    def __call__(self, headers: Mapping[str, str]) -> BodyRewriter | None:
        """Return what changes this answer's body, None for one that stays as it is."""
        self._inner = self._make(headers)
        if self._inner is None:
            encoding = headers.get("content-encoding", "").strip().lower()
            self._count("content-type" if encoding in ("", "identity") else "encoded")
            return None
        return self

    def feed(self, data: bytes) -> bytes:
        """Return what goes on instead of the next piece."""
        if self._inner is None:
            return data
        changed = self._inner.feed(data)
        if not self._restored and changed != data:
            self._restored = True
            self._count("restored")
        return changed

    def ended(self) -> None:
        """End the exchange."""
        if self._inner is not None and not self._restored:
            self._count("no-name")
        self._inner = None
