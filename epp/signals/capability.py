"""How likely each model is to answer a request rightly: by language, length bucket and task.

Owns the table in force, which a file brings (`epp.config.capability`), and what of it a request asks for. It
says nothing beyond what was seen: a model, a language or a length that is not in the table is unknown and
filled with the worst known of the candidates, so that nobody gains by never having been tested; where nothing
is known of anybody, chances are 1 and decide nothing. Source [R], section 5.2.

A question that some models failed is likely a hard one: the others' chances are those given these failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.types import SuccessCell, SuccessRates, length_bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.types import Flags, Floats, RequestInfo


#: Answers kept ready: candidate sets times cells, a handful of each.
_REMEMBERED = 1024
#: Nodes and weights of a standard normal variable (Gauss and Hermite).
_EASE, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
#: Weight of each node, 1 together.
EASE_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
#: A chance of 0 or 1 has no log odds.
_LEAST = 1e-3


def by_ease(chances: Floats, spread: float) -> Floats:
    """Return chances ``[chance, node]`` of a right answer to questions of each ease.

    An item response model of one dimension (Rasch) with a normal ease z: the log odds of a right answer are
    ``spread * z + logit(chance) * sqrt(1 + pi * spread**2 / 8)``, whose mean chance over z is about the one
    given (MacKay 1992).
    """
    safe = np.clip(chances, _LEAST, 1.0 - _LEAST)
    middle = np.log(safe / (1.0 - safe)) * np.sqrt(1.0 + np.pi * spread**2 / 8.0)
    odds: Floats = np.exp(-(middle[:, None] + spread * _EASE))
    return 1.0 / (1.0 + odds)


def after_failures(chances: Floats, failed: Flags, spread: float) -> Floats:
    """Return the chances given that some of the models failed at the question; theirs stay.

    Whether those may be right when asked again is not known.
    """
    eased = by_ease(chances, spread)
    ease = EASE_WEIGHTS * (1.0 - eased[failed]).prod(axis=0)
    return np.where(failed, chances, eased @ ease / ease.sum())


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
        self._success_rates = SuccessRates({})
        self._tasks: frozenset[str] = frozenset()
        self._memory: dict[tuple[tuple[str, ...], tuple[str, ...], SuccessCell], Success] = {}

    def replace(self, success_rates: SuccessRates) -> None:
        """Put another table in force; one without models knows nothing."""
        self._success_rates = success_rates
        self._tasks = frozenset(cell.task for cells in success_rates.by_model.values() for cell in cells)
        self._memory.clear()

    def task(self, name: str) -> str:
        """Return the task of that name, ``""`` for one that the table does not know."""
        return name if name in self._tasks else ""

    def success(self, request: RequestInfo, models: tuple[str, ...], count: int) -> Success | None:
        """Return the column of so many candidates; None without a prompt and while the table is empty.

        Args:
            request: what is asked.
            models: what each one's engine calls the model, empty when all use its public name.
            count: of the candidates.
        """
        known = self._success_rates.by_model
        if not request.prompt_tokens or not known:
            return None
        models = models or (request.model,) * count
        cell = SuccessCell(request.language, length_bucket(request.prompt_tokens), self.task(request.task))
        tried = tuple(name for name in request.tried_models if name in known)
        key = (models, tried, cell)
        found = self._memory.get(key)
        if found is None:
            if len(self._memory) >= _REMEMBERED:
                self._memory.clear()
            found = self._memory[key] = self._column(models, tried, cell)
        return found

    def _column(self, models: Sequence[str], tried: Sequence[str], cell: SuccessCell) -> Success:
        names = list({*models, *tried})
        chances = np.array([self._chance(model, cell) for model in names], np.float64)
        failed = np.isin(names, tried) & ~np.isnan(chances)
        if failed.any() and self._success_rates.ease_spread:
            chances = after_failures(chances, failed, self._success_rates.ease_spread)
        by_model = dict(zip(names, chances.tolist(), strict=True))
        values = np.array([by_model[model] for model in models], np.float64)
        unknown = np.isnan(values)
        if not unknown.any():
            return Success(values, None)
        values[unknown] = 1.0 if unknown.all() else np.nanmin(values)
        return Success(values, unknown)

    def _chance(self, model: str, cell: SuccessCell) -> float:
        cells = self._success_rates.by_model.get(model, {})
        chance = cells.get(cell)
        if chance is None and cell.task:
            chance = cells.get(SuccessCell(cell.language, cell.bucket_tokens))
        return float("nan") if chance is None else chance
