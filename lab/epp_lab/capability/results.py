"""Checked answers: one row each, from a file that an evaluation wrote, or from flight records with feedback.

Owns the row and how it is read. A row is one question that one model answered; rows with the same
``question`` are answers of several models to the same, and are never parted by the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from epp.config.section import ModelName  # noqa: TC001  # msgspec reads the annotation at run time
from epp.errors import EppError
from epp.records.files import placed_records
from epp.types import SuccessCell, length_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from epp.records.files import Place

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Verdict(msgspec.Struct, frozen=True):
    """What counts of a verdict."""

    id: str
    correct: bool


class Row(msgspec.Struct, frozen=True):
    """One checked answer; further keys of a line are ignored.

    Attributes:
        question: names the question.
        model: what the engine calls its model.
        language: as `epp.apis.language` detects it.
        prompt_tokens: length of the prompt.
        correct: whether the answer was right.
        task: kind of work, any when empty.
        tried_models: those that had answered it wrongly before; none at a first attempt.
    """

    question: _Name
    model: ModelName
    language: _Name
    prompt_tokens: Annotated[int, msgspec.Meta(gt=0)]
    correct: bool
    task: Annotated[str, msgspec.Meta(max_length=64)] = ""
    tried_models: tuple[ModelName, ...] = ()

    @property
    def cell(self) -> SuccessCell:
        """What its chance hangs on."""
        return SuccessCell(self.language, length_bucket(self.prompt_tokens), self.task)


def read_rows(place: Path) -> list[Row]:
    """Read rows from a JSON Lines file, or from a folder of flight records.

    Raises:
        EppError: a line is no row (the message names it), or there is none.
        OSError: it cannot be read.
    """
    rows = list(_recorded(place)) if place.is_dir() else decode_rows(place.read_bytes(), place)
    if not rows:
        raise EppError(f"{place}: no checked answers (`epp feedback` reports them)")
    return rows


def decode_rows(content: bytes, path: Path) -> list[Row]:
    """Decode lines to rows; empty lines are passed over.

    Raises:
        EppError: a line is no row; the message names it by ``path``.
    """
    decoder, rows = msgspec.json.Decoder(Row), []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EppError(f"{path}, line {number}: {error}") from None
    return rows


def _recorded(folder: Path) -> Iterator[Row]:
    """Yield verdicts joined to their decisions; the last one on a decision counts.

    Raises:
        EppError: a record that counts does not hold what its kind says; the message names its line.
    """
    decisions: dict[str, tuple[Place, dict[str, object]]] = {}
    verdicts: dict[str, bool] = {}
    for place, record in placed_records(folder):
        try:
            if record["kind"] == "decision":
                decisions[record["id"]] = place, _decided(record)
            elif record["kind"] == "feedback":
                verdict = msgspec.convert(record, _Verdict)
                verdicts[verdict.id] = verdict.correct
        except (msgspec.ValidationError, KeyError, TypeError, IndexError, AttributeError) as error:
            why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise EppError(f"{place}: this {record['kind']} cannot be read: {why}") from error
    for decision_id, correct in verdicts.items():
        if decision_id not in decisions:
            continue
        place, known = decisions[decision_id]
        if known["model"] and known["language"] and known["prompt_tokens"]:
            try:
                yield msgspec.convert({**known, "correct": correct}, Row)
            except msgspec.ValidationError as error:
                raise EppError(f"{place}: this decision makes no checked answer: {error}") from error


def _decided(record: Mapping[str, Any]) -> dict[str, object]:
    """Return what a row has of a decision."""
    request = record["request"]
    return {
        "question": record.get("prompt_id") or record["id"],
        "model": record.get("served_model", ""),
        "language": request.get("language", ""),
        "prompt_tokens": request["prompt_tokens"],
        "task": request.get("task", ""),
        "tried_models": request.get("tried_models", ()),
    }
