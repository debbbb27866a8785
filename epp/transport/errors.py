"""What the other side may do wrong, by what it costs: the connection, or one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.transport.frames import ErrorCode


class ProtocolError(Exception):
    """The connection cannot go on: it is ended by GOAWAY. Never leaves `epp.transport`.

    Args:
        code: told to the other side.
        detail: one sentence, told too.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)


class StreamError(Exception):
    """One stream cannot go on: it is reset. Never leaves `epp.transport`.

    Args:
        code: told to the other side.
        detail: one sentence, for the events.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)
