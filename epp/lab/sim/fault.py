"""Faults that a simulated replica can be told to have, for tests and rehearsals."""

from __future__ import annotations

import msgspec

#: A prompt of some seconds is done within hours all the same: what has begun keeps its pace to its end.
MOST_SLOW_FACTOR = 1000.0


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong with a replica; the default is nothing. ``POST /sim/fault`` replaces it whole.

    Attributes:
        hang: connections are accepted and nothing is answered, health and metrics included.
        slow_factor: the engine's work takes so many times longer, up to `MOST_SLOW_FACTOR`; a step that has
            begun keeps its pace when this changes.
        error_rate: share of completions answered with ``error_status``.
        error_status: HTTP status of those answers.
        error_retry_after_s: their ``Retry-After``, none when None.
        reset_after_tokens: streams are cut with a TCP reset after so many tokens.
        die: the listener closes, every connection is reset, and cache and counters are lost.
        revive_after_s: with ``die``: start again, cold, on the same port after so long.
    """

    hang: bool = False
    slow_factor: float = 1.0
    error_rate: float = 0.0
    error_status: int = 503
    error_retry_after_s: int | None = None
    reset_after_tokens: int | None = None
    die: bool = False
    revive_after_s: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a value makes no sense.
        """
        if not 0 < self.slow_factor <= MOST_SLOW_FACTOR:
            raise ValueError(
                f"slow_factor must be positive, up to {MOST_SLOW_FACTOR:g}; hang stops a replica"
            )
        if not 0 <= self.error_rate <= 1:
            raise ValueError("error_rate must be within 0 and 1")
        if not 400 <= self.error_status <= 599:
            raise ValueError("error_status must be within 400 and 599")
        if self.reset_after_tokens is not None and self.reset_after_tokens < 1:
            raise ValueError("reset_after_tokens must be at least 1")

    @property
    def error_headers(self) -> dict[str, str]:
        """Headers of answers with ``error_status``."""
        return {} if self.error_retry_after_s is None else {"retry-after": str(self.error_retry_after_s)}
