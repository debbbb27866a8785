"""What can be wrong between a picker and an API server."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Kind of failure; label of metrics."""

    NOT_FOUND = "not-found"  # the resource is not served: its CRD is not installed
    FORBIDDEN = "forbidden"  # RBAC
    UNAUTHORIZED = "unauthorized"  # the credentials are refused
    GONE = "gone"  # the resource version is too old: list again
    UNREACHABLE = "unreachable"  # no connection, TLS, a cut answer
    SERVER = "server"  # 5xx, too many requests, anything else that it answers
    MALFORMED = "malformed"  # an answer that is not the API's
    CREDENTIALS = "credentials"  # none to be found, or a plugin failed


class KubeError(Exception):
    """A call that did not succeed.

    Args:
        reason: kind.
        message: one sentence.
        retry_after_s: how long the server asks to be left alone, 0 when it does not say.
    """

    def __init__(self, reason: Reason, message: str, retry_after_s: float = 0.0) -> None:
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s
        super().__init__(message)


def reason_of(status: int) -> Reason:
    """Kind of failure of an HTTP status."""
    known = {401: Reason.UNAUTHORIZED, 403: Reason.FORBIDDEN, 404: Reason.NOT_FOUND, 410: Reason.GONE}
    return known.get(status, Reason.SERVER)
