"""Checked answers: one row each, from a file that an evaluation wrote, or from flight records with feedback.

Owns the row and how it is read. A row is one question that one model answered; rows with the same
``question`` are answers of several models to the same, and are never parted by the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from epp.decide.record_files import read_records
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Row(msgspec.Struct, frozen=True):
    """One checked answer; further keys of a line are ignored.

    Attributes:
        question: names the question.
        model: what the engine calls its model.
        language: as `epp.prompt.language` tells it.
        prompt_tokens: length of the prompt.
        correct: whether the answer was right.
        task: kind of work, any when empty.
    """

    question: _Name
    model: _Name
    language: _Name
    prompt_tokens: Annotated[int, msgspec.Meta(gt=0)]
    correct: bool
    task: Annotated[str, msgspec.Meta(max_length=64)] = ""


def read_rows(place: Path) -> list[Row]:
    """Rows of a JSON Lines file, or of a folder of flight records.

    Raises:
        EppError: it cannot be read, a line is no row (the message names it), or there is none.
    """
    try:
        rows = list(_recorded(place)) if place.is_dir() else list(_lines(place))
    except OSError as error:
        raise EppError(f"{place}: {error.strerror}") from error
    if not rows:
        raise EppError(f"{place}: no checked answers")
    return rows


def _lines(path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(Row)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise EppError(f"{path}, line {number}: {error}") from None


def _recorded(folder: Path) -> Iterator[Row]:
    """Verdicts joined to their decisions; the last one on a decision counts."""
    decisions: dict[str, dict[str, object]] = {}
    verdicts: dict[str, bool] = {}
    for record in read_records(folder):
        if record["kind"] == "decision":
            request = record["request"]
            decisions[record["id"]] = {
                # Prompts with the same blocks are the same question, or its retries.
                "question": (record["blocks"] or [record["id"]])[-1],
                "model": record.get("served_model", ""),
                "language": request.get("language", ""),
                "prompt_tokens": request["prompt_tokens"],
                "task": request.get("task", ""),
            }
        elif record["kind"] == "feedback":
            verdicts[record["id"]] = record["correct"]
    for decision_id, correct in verdicts.items():
        known = decisions.get(decision_id)
        if known is not None and known["model"] and known["language"] and known["prompt_tokens"]:
            yield msgspec.convert({**known, "correct": correct}, Row)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rows as JSON Lines."""
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"".join(encoder.encode(row) + b"\n" for row in rows))
