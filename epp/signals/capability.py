"""How likely each model is to answer a request rightly: by language, length bucket and task.

Owns the table in force, which a file brings (`epp.config.capability`), and what of it a request asks for. It
says nothing beyond what was seen: a model, a language or a length that is not in the table is unknown and
filled with the worst known of the candidates, so that nobody gains by never having been tested; where nothing
is known of anybody, chances are 1 and decide nothing. Source [R], section 5.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.types import Cell, length_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.types import Flags, Floats, RequestInfo


#: Answers kept ready: candidate sets times cells, a handful of each.
_REMEMBERED = 1024


class Success(NamedTuple):
    """One column.

    Attributes:
        values: chance of each candidate. Not to be written.
        unknown: which of them were filled in, None when none was.
    """

    values: Floats
    unknown: Flags | None


class Capability:
    """The table in force; empty until `replace`."""

    def __init__(self) -> None:
        self._chances: Mapping[str, Mapping[Cell, float]] = {}
        self._tasks: frozenset[str] = frozenset()
        self._memory: dict[tuple[tuple[str, ...], Cell], Success] = {}

    def replace(self, chances: Mapping[str, Mapping[Cell, float]]) -> None:
        """Another table: chance by what the engine calls the model, and cell; ``{}`` knows nothing."""
        self._chances = chances
        self._tasks = frozenset(cell.task for cells in chances.values() for cell in cells)
        self._memory.clear()

    def task(self, name: str) -> str:
        """Return the task of that name, ``""`` for one that the table does not know."""
        return name if name in self._tasks else ""

    def success(self, request: RequestInfo, models: tuple[str, ...], count: int) -> Success | None:
        """The column of so many candidates; None of a request without a prompt and while the table is empty.

        Args:
            request: what is asked.
            models: what each one's engine calls the model, empty when all use its public name.
            count: of the candidates.
        """
        if not request.prompt_tokens or not self._chances:
            return None
        models = models or (request.model,) * count
        cell = Cell(request.language, length_bucket(request.prompt_tokens), self.task(request.task))
        key = (models, cell)
        found = self._memory.get(key)
        if found is None:
            if len(self._memory) >= _REMEMBERED:
                self._memory.clear()
            found = self._memory[key] = self._column(models, cell)
        return found

    def _column(self, models: Sequence[str], cell: Cell) -> Success:
        by_model = {model: self._chance(model, cell) for model in set(models)}
        values = np.array([by_model[model] for model in models], np.float64)
        unknown = np.isnan(values)
        if not unknown.any():
            return Success(values, None)
        values[unknown] = 1.0 if unknown.all() else np.nanmin(values)
        return Success(values, unknown)

    def _chance(self, model: str, cell: Cell) -> float:
        cells = self._chances.get(model, {})
        chance = cells.get(cell)
        if chance is None and cell.task:
            chance = cells.get(Cell(cell.language, cell.bucket_tokens))
        return float("nan") if chance is None else chance
