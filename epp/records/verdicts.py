"""What an evaluator says of an answer: right or wrong, by the id of its decision.

Owns the shape of a verdict, as it comes over HTTP and as it is recorded. A verdict is numbers and names: no
text of question or answer belongs into records.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from epp.schedule.decision import SCHEMA_VERSION

MAX_VERDICT_BYTES = 4096
_ID = re.compile(r"[0-9A-Za-z._:-]{1,128}")


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    correct: bool
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    evaluator: Annotated[str, msgspec.Meta(pattern=r"^[\w.:/@-]{0,64}$")] = ""


class AnswerVerdict(_Body, frozen=True, kw_only=True):
    """One verdict.

    Attributes:
        id: the decision's id, as ``x-epp-decision-id`` tells it.
        correct: whether the answer was right.
        score: how good it was, 0..1, where the evaluator grades.
        evaluator: who says so, a short name.
    """

    id: str


def parse_verdict(decision_id: str, body: bytes) -> AnswerVerdict:
    """A verdict from a request.

    Raises:
        ValueError: the id cannot be one of ours, or the body is not ``{"correct": true}`` with at most a
            ``score`` and an ``evaluator`` beside it; says what is wrong.
    """
    if not _ID.fullmatch(decision_id):
        raise ValueError("that is no decision's id")
    try:
        told = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    return AnswerVerdict(id=decision_id, **msgspec.structs.asdict(told))


def verdict_record(verdict: AnswerVerdict, at_wall_s: float) -> dict[str, Any]:
    """A verdict as plain values, ready for JSON."""
    return {
        "schema": SCHEMA_VERSION,
        "kind": "feedback",
        "at": round(at_wall_s, 6),
        **msgspec.structs.asdict(verdict),
    }
