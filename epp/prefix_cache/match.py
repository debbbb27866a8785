"""How much of a prompt each slot holds, as the prefix index found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import Floats, Slots

    _Limit = Callable[[Slots, Floats], Floats]

_FEW_SLOTS = 24  # up to here a loop over bits beats unpacking them


class PrefixMatch:
    """The longest cached prefix of one prompt, for all slots at once.

    Args:
        steps: (holders, tokens) pairs, deeper and fewer: whoever is among the holders has so many tokens.
        answered: slot -> tokens including an answer that the prompt continues.
        prompt_tokens: an upper bound of every answer.
        depth_blocks: blocks of the prompt that anybody holds.
        limit: of slots and the tokens cached there, those that can be taken up; None where that is all.
        parted: another prompt went on from there in a way of its own.
    """

    __slots__ = ("_answered", "_limit", "_prompt_tokens", "_steps", "depth_blocks", "parted")

    def __init__(
        self,
        steps: list[tuple[int, float]],
        answered: dict[int, int],
        prompt_tokens: int,
        depth_blocks: int = 0,
        limit: _Limit | None = None,
        *,
        parted: bool = False,
    ) -> None:
        self._steps, self._answered, self._prompt_tokens = steps, answered, prompt_tokens
        self._limit = limit
        self.depth_blocks, self.parted = depth_blocks, parted

    def cached_tokens(self, slots: Slots) -> Floats:
        """Return the tokens believed cached, by candidate."""
        if len(slots) <= _FEW_SLOTS:
            result = np.array(self._few(slots.tolist()), np.float64)
            return result if self._limit is None else self._limit(slots, result)
        result = np.zeros(len(slots))
        if self._steps:
            width = max(int(slots.max()) + 1, self._steps[0][0].bit_length()) // 8 + 1
            for holders, tokens in self._steps:
                bits = np.frombuffer(holders.to_bytes(width, "little"), dtype=np.uint8)
                result[np.unpackbits(bits, bitorder="little")[slots].view(np.bool_)] = tokens
        if self._answered:
            for row, slot in enumerate(slots.tolist()):
                if slot in self._answered:
                    result[row] = max(float(result[row]), self._answered[slot])
        result = np.minimum(result, self._prompt_tokens)
        return result if self._limit is None else self._limit(slots, result)

    def _few(self, slots: list[int]) -> list[float]:
        most, found = float(self._prompt_tokens), []
        for slot in slots:
            cached = 0.0
            for holders, tokens in self._steps:
                if not holders >> slot & 1:
                    break  # whoever holds a deeper one holds this
                cached = tokens
            found.append(min(max(cached, self._answered.get(slot, 0.0)), most))
        return found
