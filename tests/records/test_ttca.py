"""Attempts of recorded questions joined: whose retry is whose, what counts as wrong, and what took how long."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.apis.types import ParsedRequest
from epp.records.files import read_records
from epp.records.ttca import asked_questions
from epp.records.verdicts import AnswerVerdict, verdict_record
from epp.schedule.decision import to_record
from epp.tokens.estimate import EstimateCounter
from epp.types import Endpoint
from epp_lab.capability.results import read_rows
from tests.kit.records import HASHER, WALL_S, command, decided, picker_of, recorder_to

if TYPE_CHECKING:
    from pathlib import Path


def attempt(
    at: float,
    model: str,
    *tried: str,
    ms: float | None = 100.0,
    correct: bool | None = None,
    prompt: str = "p",
    session: str = "s",
    policy: str = "laar",
) -> list[dict[str, Any]]:
    """Records of a request: its decision, its outcome where it has an end, its verdict where it has one."""
    ((decision, _),) = decided(1, "gorgo")
    name = f"{at}"
    record = to_record(decision, prompt_id=prompt) | {
        "id": name,
        "at": at,
        "policy": policy,
        "served_model": model,
    }
    record["request"] |= {"tried_models": list(tried), "affinity_key": session}
    found = [record]
    if ms is not None:
        found.append({"schema": 2, "kind": "outcome", "id": name, "e2e_ms": ms})
    if correct is not None:
        found.append(verdict_record(AnswerVerdict(id=name, correct=correct), at + 1.0))
    return found


@pytest.mark.parametrize(
    ("attempts", "questions"),
    [
        pytest.param([attempt(1, "a", correct=True)], [(["a"], 100.0, True)], id="right at once"),
        pytest.param(
            [attempt(1, "a", correct=False), attempt(2, "b", "a", ms=50.0, correct=True)],
            [(["a", "b"], 150.0, True)],
            id="right at the second",
        ),
        pytest.param(
            [attempt(1, "a"), attempt(2, "b", "a"), attempt(3, "c", "a", "b", correct=False)],
            [(["a", "b", "c"], 300.0, False)],
            id="never right: what it took counts, and what was retried needs no verdict",
        ),
        pytest.param(
            [
                *(attempt(at, "a", session=session) for at, session in ((1, "s"), (2, "t"))),
                attempt(3, "b", "a", session="s", correct=False),
                attempt(4, "c", "a", session="t", correct=True),
            ],
            [(["a", "b"], 200.0, False), (["a", "c"], 200.0, True)],
            id="one prompt in two sessions",
        ),
        pytest.param(
            [
                attempt(1, "a", correct=False),
                attempt(2, "a", correct=False, prompt="q"),
                attempt(3, "b", "a", correct=True),
            ],
            [(["a", "b"], 200.0, True), (["a"], 100.0, False)],
            id="two prompts in one session",
        ),
        pytest.param(
            [attempt(1, "a", correct=True), attempt(2, "b", "a", correct=True)],
            [(["a"], 100.0, True)],
            id="answered rightly: nothing follows",
        ),
        pytest.param([attempt(2, "b", "a", correct=True)], [], id="its first attempt is not on file"),
        pytest.param(
            [attempt(2, "a", "a", correct=True), attempt(1, "a", correct=False)],
            [(["a", "a"], 200.0, True)],
            id="files of two pickers, the same model again",
        ),
    ],
)
def test_attempts_are_joined(
    attempts: list[list[dict[str, Any]]], questions: list[tuple[list[str], float, bool | None]]
) -> None:
    found = asked_questions(record for records in attempts for record in records)
    assert [(one.models, one.ttca_ms, one.correct) for one in found] == questions


@pytest.mark.parametrize("head", [b"", b"instructions " * 200])
def test_recorded_prompts_are_one_question_when_they_are_equal_to_the_last_byte(
    tmp_path: Path, head: bytes
) -> None:
    pool = tuple(Endpoint(f"10.0.0.{at}:8000", served_names={"m": name}) for at, name in enumerate("ab"))
    scheduler, first = picker_of("laar", pool=pool), list[str]()
    with recorder_to(tmp_path) as (recorder, _):
        for at in range(6):
            parsed = ParsedRequest("openai-chat", "m", head + b"%d" % (at % 3), False, None, "", "", True)
            ask = HASHER.measure(parsed, EstimateCounter())
            decision = scheduler.decide(
                replace(ask, tried_models=tuple(first[at - 3 : at - 2])), at, WALL_S + at
            )
            first.append(decision.upstream_model)
            recorder.record(decision)
            recorder.record(AnswerVerdict(id=decision.id, correct=at > 2), WALL_S + at)
    assert sorted(Counter(row.question for row in read_rows(tmp_path)).values()) == [2, 2, 2]
    assert [len(asked.models) for asked in asked_questions(read_records(tmp_path))] == [2, 2, 2]


def test_the_command_compares_policies_and_first_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        *attempt(1, "small", correct=False, prompt="1", ms=1000.0),
        *attempt(2, "large", "small", correct=True, prompt="1", ms=3000.0),
        *attempt(3, "large", correct=True, prompt="2", ms=2000.0),
        *attempt(4, "large", correct=False, prompt="3", ms=2000.0, policy="least-load"),
        *attempt(5, "large", correct=True, prompt="4", ms=None),  # no end
        *attempt(6, "large", prompt="5"),  # no verdict
    ]
    halves = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    for path, part in zip(halves, (records[:3], records[3:]), strict=True):
        path.write_text("".join(json.dumps(record) + "\n" for record in part))
    assert command("records", "ttca", *halves) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert rows == [
        ["laar", "any", "2", "100.0%", "1.50", "3.00", "3.00"],
        ["laar", "small", "1", "100.0%", "2.00", "4.00", "4.00"],
        ["laar", "large", "1", "100.0%", "1.00", "2.00", "2.00"],
        ["least-load", "any", "1", "0.0%", "1.00", "2.00", "-"],
        ["least-load", "large", "1", "0.0%", "1.00", "2.00", "-"],
    ]
    assert "3 of 5 questions; the others lack a verdict or an end" in out
    assert command("records", "ttca", *halves, "--policy", "least-load") == 0
    assert "laar " not in capsys.readouterr().out
