"""Envoy's reports about decisions that another process made: passed on to it, wherever they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.errors import UnreadableError
from epp.request.access_log import Attempt, Report
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.request.access_log import Reports

#: More than an entry of Envoy's log has.
_MOST_BYTES = 64 * 1024
#: What is passed on, by its first byte: the method of `Reports` that takes it, and its arguments.
_KINDS: dict[bytes, tuple[str, msgspec.msgpack.Decoder[tuple[Any, ...]]]] = {
    b"F": ("first_token", msgspec.msgpack.Decoder(tuple[str])),
    b"I": ("stored", msgspec.msgpack.Decoder(tuple[str, str])),
    b"T": ("attempted", msgspec.msgpack.Decoder(tuple[Attempt])),
    b"R": ("finished", msgspec.msgpack.Decoder(tuple[Report])),
}


class RoutedReports:
    """Takes Envoy's reports, and passes on those that are another's.

    Args:
        own: takes this process's.
        maker_of: names who else made a decision, by its id; None for this process, or nobody that is known.
        send: carries a report to one of those.
    """

    def __init__(
        self, own: Reports, maker_of: Callable[[str], Any], send: Callable[[Any, bytes], object]
    ) -> None:
        self._own, self._maker_of, self._send = own, maker_of, send

    def take(self, data: bytes) -> None:
        """Take what another process has passed on.

        Raises:
            UnreadableError: it is no report.
        """
        if data[:1] not in _KINDS or len(data) > _MOST_BYTES:
            raise UnreadableError("no report")
        method, decoder = _KINDS[data[:1]]
        getattr(self._own, method)(*read(decoder, data[1:]))

    def _tell(self, decision_id: str, kind: bytes, *told: object) -> None:
        maker = self._maker_of(decision_id)
        if maker is None:
            getattr(self._own, _KINDS[kind][0])(*told)
        else:
            self._send(maker, kind + msgspec.msgpack.encode(told))

    def first_token(self, decision_id: str) -> None:
        """Take or pass on a first token."""
        self._tell(decision_id, b"F", decision_id)

    def stored(self, decision_id: str, response_id: str) -> None:
        """Take or pass on the id of a stored response."""
        self._tell(decision_id, b"I", decision_id, response_id)

    def attempted(self, attempt: Attempt) -> None:
        """Take or pass on an attempt that was refused or failed."""
        self._tell(attempt.decision_id, b"T", attempt)

    def finished(self, report: Report) -> None:
        """Take or pass on the end of a request."""
        self._tell(report.decision_id, b"R", report)
