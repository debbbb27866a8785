"""How long to wait before another try: doubling, bounded and drawn, so that pickers do not march in step."""

from __future__ import annotations

from epp.keyed_uniform import keyed_uniform

FIRST_S = 0.5
LONGEST_S = 30.0


class BackOff:
    """Waits of one caller.

    Args:
        seed: seed of the draws, another one in every process.
        key: the caller's name.
    """

    def __init__(self, seed: int, key: str) -> None:
        self._seed, self._key = seed, key
        self._failures = 0
        self._draws = 0

    @property
    def failures(self) -> int:
        """Waits in a row."""
        return self._failures

    def next_s(self) -> float:
        """Seconds to wait now: between half and all of a bound that doubles from half a second to thirty."""
        bound = min(LONGEST_S, FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return bound * (0.5 + 0.5 * self.spread("retry"))

    def reset(self) -> None:
        """It worked: start small again."""
        self._failures = 0

    def spread(self, salt: str) -> float:
        """A number in [0, 1) for anything else that should not march in step."""
        self._draws += 1
        return keyed_uniform(self._seed, f"{self._key}/{self._draws}", salt)
