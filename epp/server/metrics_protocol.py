"""What was seen of requests on their streams, and what of answers was changed: counted, nothing decided.

Owns these counters and the watch over one answer whose model's name is put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.server.metrics_hot import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.types import BodyRewriter, HttpRequest
    from epp.server.metrics_hot import Family, Value

SEEN = ("whole", "none", "unread", "cut")
#: Why an answer keeps the engine's name for its model.
REASONS = ("encoded", "content-type", "no-name")


class ProtocolMetrics:
    """The counters."""

    def __init__(self) -> None:
        self._bodies = Counters(
            "epp_request_bodies_total",
            "Requests to be picked by what was seen of their body: whole, none to see, unread because nobody "
            "asks what is in it or it cannot come in time, or cut off at a buffer's limit.",
            ("seen",),
        )
        self._observing = Counters(
            "epp_observability_requests_total",
            "Requests of proxies that tell and obey no answer (observability mode), decided as others are.",
        )
        self._restored = Counters(
            "epp_answers_restored_total",
            "Answers passing the picker in which the public model name was put back.",
        )
        self._unrestored = Counters(
            "epp_answers_unrestored_total",
            "Answers passing the picker that kept the engine's name for the model: encoded, of a content "
            "type that is not read, or without a name where one is looked for (errors, for example).",
            ("reason",),
        )
        self._seen = {seen: self._bodies.child(seen) for seen in SEEN}
        self._observed: Value = self._observing.child()
        self._back: Value = self._restored.child()
        self._kept = {reason: self._unrestored.child(reason) for reason in REASONS}

    def families(self) -> tuple[Family[Value], ...]:
        """What it counts."""
        return (self._bodies, self._observing, self._restored, self._unrestored)

    def asked(self, request: HttpRequest, *, observing: bool) -> None:
        """A request is to be picked."""
        if request.body is None:
            seen = "none" if request.whole else "unread"
        else:
            seen = "whole" if request.whole else "cut"
        self._seen[seen].value += 1.0
        if observing:
            self._observed.value += 1.0

    def restored(self) -> None:
        """A name was put back."""
        self._back.value += 1.0

    def unrestored(self, reason: str) -> None:
        """An answer kept its name, for one of `REASONS`."""
        self._kept[reason].value += 1.0


class Restoring:
    """One answer whose model's name is to be put back; counted once.

    Args:
        metrics: counted into.
        make: from the answer's headers to what changes its body, as `Pick.rewrite_response`.
    """

    __slots__ = ("_inner", "_make", "_metrics", "_restored")

    def __init__(
        self, metrics: ProtocolMetrics, make: Callable[[Mapping[str, str]], BodyRewriter | None]
    ) -> None:
        self._metrics, self._make = metrics, make
        self._inner: BodyRewriter | None = None
        self._restored = False

    def __call__(self, headers: Mapping[str, str]) -> BodyRewriter | None:
        """What changes this answer's body, None for one that stays as it is."""
        self._inner = self._make(headers)
        if self._inner is None:
            encoding = headers.get("content-encoding", "").strip().lower()
            self._metrics.unrestored("content-type" if encoding in ("", "identity") else "encoded")
            return None
        return self

    def feed(self, data: bytes) -> bytes:
        """What goes on instead of the next piece."""
        if self._inner is None:
            return data
        changed = self._inner.feed(data)
        if not self._restored and changed != data:
            self._restored = True
            self._metrics.restored()
        return changed

    def ended(self) -> None:
        """The exchange is over."""
        if self._inner is not None and not self._restored:
            self._metrics.unrestored("no-name")
        self._inner = None
