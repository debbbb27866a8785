"""What a comparison of retries found, as plain values: the content of its ``results.json`` and report.

Owns the schema and how runs become it. Pure. A policy is compared with the candidate draw by draw: both met
the same models, questions and answers, so what is reported is the distribution of their ratio over draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp.replay.kv_retry.prior import LANGUAGES, LENGTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.replay.kv_retry.cell import CellFigures

SCHEMA = 2
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class PolicyCell(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in a cell: means over draws, and the distribution of the candidate's gain over it.

    Attributes:
        policy: name.
        ttca_ms: mean time to the first correct answer, right-censored: of a question that got none, the time
            spent on it.
        per_correct_ms: time spent on all questions over the number that were answered rightly: what an answer
            costs, whoever gives up early.
        success: share of questions answered rightly.
        first: share answered rightly at once.
        attempts: mean attempts of a question.
        most_attempts: of any question in any draw.
        hit_share: prompt tokens that caches gave.
        gain: quantiles over draws (`Retries.quantiles`) of 1 - candidate / policy, of ``ttca_ms``.
        gain_per_correct: the same of ``per_correct_ms``.
        success_more: quantiles of the candidate's success less the policy's.
        success_less: draws in which the candidate's success is the lower.
    """

    policy: str
    ttca_ms: float
    per_correct_ms: float
    success: float
    first: float
    attempts: float
    most_attempts: int
    hit_share: float
    gain: list[float]
    gain_per_correct: list[float]
    success_more: list[float]
    success_less: int


class RetryCell(msgspec.Struct, frozen=True, kw_only=True):
    """A language and a length; ``language`` is ``all`` for the mean over languages."""

    language: str
    prompt_tokens: int
    policies: list[PolicyCell]

    @property
    def name(self) -> str:
        """E.g. ``ja 64K``."""
        return f"{self.language} {self.prompt_tokens // 1024}K"


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison.

    Attributes:
        schema: version.
        workload: ``kv-retry``, or ``kv-retry-shared`` with contexts in common.
        draws: numbers of the draws.
        candidate: the policy that is judged.
        quantiles: of distributions over draws.
        cells: of each language and length, then of each length over languages.
        conclusion: sentences.
    """

    schema: int
    workload: str
    draws: list[int]
    candidate: str
    quantiles: list[float]
    cells: list[RetryCell]
    conclusion: list[str]


def document(
    workload: str,
    draws: Sequence[int],
    names: Sequence[str],
    runs: Sequence[list[list[CellFigures]]],
    candidate: str,
) -> Retries:
    """Runs as a document.

    Args:
        workload: its name.
        draws: their numbers.
        names: policies.
        runs: per draw, per policy, per cell (languages first, then lengths).
        candidate: who is judged.
    """
    shape = (len(draws), len(names), len(LANGUAGES), len(LENGTHS))
    columns = {
        field: np.array(
            [[[getattr(cell, field) for cell in cells] for cells in run] for run in runs]
        ).reshape(shape)
        for field in ("ttca_ms", "success", "first", "attempts", "most_attempts", "hit_share")
    }
    cells = []
    for language in (*range(len(LANGUAGES)), None):
        for length, tokens in enumerate(LENGTHS):
            picked = {
                field: values[:, :, :, length]
                if language is None
                else values[:, :, language : language + 1, length]
                for field, values in columns.items()
            }
            label = "all" if language is None else LANGUAGES[language]
            entries = _entries(picked, names, names.index(candidate))
            cells.append(RetryCell(language=label, prompt_tokens=tokens, policies=entries))
    found = Retries(
        schema=SCHEMA,
        workload=workload,
        draws=list(draws),
        candidate=candidate,
        quantiles=list(_QUANTILES),
        cells=cells,
        conclusion=[],
    )
    return msgspec.structs.replace(found, conclusion=conclusion(found))


def _entries(columns: dict[str, NDArray[np.float64]], names: Sequence[str], at: int) -> list[PolicyCell]:
    ttca, success = columns["ttca_ms"].mean(axis=2), columns["success"].mean(axis=2)
    # Half a right answer more: a cell without any has no price, only a bound on it.
    per_correct = ttca / np.maximum(success, 0.5 / 50)
    return [
        PolicyCell(
            policy=name,
            ttca_ms=float(ttca[:, row].mean()),
            per_correct_ms=float(per_correct[:, row].mean()),
            success=float(success[:, row].mean()),
            first=float(columns["first"][:, row].mean()),
            attempts=float(columns["attempts"][:, row].mean()),
            most_attempts=int(columns["most_attempts"][:, row].max()),
            hit_share=float(columns["hit_share"][:, row].mean()),
            gain=_quantiles(1.0 - ttca[:, at] / ttca[:, row]),
            gain_per_correct=_quantiles(1.0 - per_correct[:, at] / per_correct[:, row]),
            success_more=_quantiles(success[:, at] - success[:, row]),
            success_less=int((success[:, at] < success[:, row] - 1e-9).sum()),
        )
        for row, name in enumerate(names)
    ]


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    return [float(value) for value in np.quantile(values, _QUANTILES)]


def conclusion(found: Retries) -> list[str]:
    """What may be said: of every other policy, the best and the worst cell, by their medians over draws."""
    middle = _QUANTILES.index(0.5)
    single = [cell for cell in found.cells if cell.language != "all"]
    longest = next(
        cell for cell in found.cells if cell.language == "all" and cell.prompt_tokens == LENGTHS[-1]
    )
    own = [entry for cell in found.cells for entry in cell.policies if entry.policy == found.candidate]
    most = max(entry.most_attempts for entry in own)
    said = [f"{found.candidate}: at most {most} attempts in any cell and draw"]
    for name in (entry.policy for entry in longest.policies if entry.policy != found.candidate):
        rows = [(cell, entry) for cell in single for entry in cell.policies if entry.policy == name]
        said += [_range(name, rows, per_correct=per_correct) for per_correct in (False, True)]
        less = [row for row in rows if row[1].success_more[middle] < 0]
        lost = sum(entry.success_less for _, entry in rows)
        worst = -min(entry.success_more[0] for _, entry in rows)
        said.append(
            f"success against {name}: in the median over draws less in {len(less)} of {len(rows)} cells;"
            f" of all cells of all draws less in {lost} of {len(rows) * len(found.draws)}"
            + (f", by at most {worst:.0%}" if lost else "")
        )
        entry = next(entry for entry in longest.policies if entry.policy == name)
        said.append(
            f"64K against {name}: median gain {entry.gain[middle]:+.0%} [{entry.gain[1]:+.0%},"
            f" {entry.gain[-2]:+.0%}] in TTCA, {entry.gain_per_correct[middle]:+.0%} in time per correct"
            f" answer, success {entry.success_more[middle]:+.0%}"
        )
    return said


def _range(name: str, rows: Sequence[tuple[RetryCell, PolicyCell]], *, per_correct: bool) -> str:
    """The best and the worst cell by the median over draws."""
    gains = [(cell.name, entry.gain_per_correct if per_correct else entry.gain) for cell, entry in rows]
    middle = _QUANTILES.index(0.5)
    best = max(gains, key=lambda row: row[1][middle])
    worst = min(gains, key=lambda row: row[1][middle])
    return (
        f"{'time per correct answer' if per_correct else 'TTCA'} against {name}: median gain"
        f" {best[1][middle]:+.0%} in {best[0]}, the best cell (best draw {best[1][-1]:+.0%}),"
        f" {worst[1][middle]:+.0%} in {worst[0]}, the worst (worst draw {worst[1][0]:+.0%})"
    )


def encode(found: Retries) -> bytes:
    """The bytes of ``results.json``: six significant digits."""

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        return [rounded(item) for item in value] if isinstance(value, list) else value

    return msgspec.json.format(msgspec.json.encode(rounded(msgspec.to_builtins(found))), indent=1) + b"\n"
