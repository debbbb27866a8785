"""How many retries of refused requests may be in vain: where no engine has room, all are.

Owns two counts of late, which fade exponentially. A retry that another engine serves spends nothing.
"""

from __future__ import annotations

import math

#: How long a request counts.
_WINDOW_S = 10.0
#: So many retries may be refused in a window, and this share of all requests.
_LEAST, _SHARE = 10.0, 0.1


class RetryBudget:
    """Counts requests, and retries that were refused like the attempt before them."""

    def __init__(self) -> None:
        self._requests = self._in_vain = 0.0
        self._counted_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Count a request, and tell whether its refusal may be retried."""
        self._fade(now_s)
        self._requests += 1.0
        return self._in_vain < _LEAST + _SHARE * self._requests

    def in_vain(self, now_s: float) -> None:
        """Count a retry that was refused."""
        self._fade(now_s)
        self._in_vain += 1.0

    def _fade(self, now_s: float) -> None:
        left = math.exp(-max(now_s - self._counted_s, 0.0) / _WINDOW_S)
        self._requests *= left
        self._in_vain *= left
        self._counted_s = now_s
