"""How many retries of refused requests may be in vain: where no engine has room, all are.

A retry that another engine serves spends nothing.
"""

from __future__ import annotations

from epp.signals.health import Lately

#: So many retries of late may be refused, and this share of all requests.
_LEAST, _SHARE = 10.0, 0.1


class RetryBudget:
    """Counts requests, and retries that were refused like the attempt before them."""

    def __init__(self) -> None:
        self._lately = Lately()

    @property
    def allows(self) -> bool:
        """Whether the refusal of the last request may be retried."""
        return self._lately.failed < _LEAST + _SHARE * self._lately.answered

    def request(self, now_s: float) -> None:
        """Count a request."""
        self._lately.count(now_s, failed=False)

    def in_vain(self, now_s: float) -> None:
        """Count a retry that was refused."""
        self._lately.count(now_s, failed=True)
