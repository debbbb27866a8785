"""Fits: chances near the truth, honest intervals, nothing beyond what was seen; the command and its inputs."""

from __future__ import annotations

import json
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from epp.config.capability import parse_capability
from epp.errors import EppError
from epp.records.verdicts import AnswerVerdict, verdict_record
from epp.schedule.decision import to_record
from epp.signals.capability import after_failures
from epp.types import SuccessCell
from epp_lab.capability.fit import fit
from epp_lab.capability.results import Row, read_rows
from tests.kit.records import command, decided

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from epp.config.capability import CapabilityFile, ChanceEntry

LENGTHS = (4096, 8192, 16384, 32768, 65536)
LANGUAGES = ("en", "ja", "zh")


def truth(model: str, language: str, tokens: int) -> float:
    step = float(np.log2(tokens / 4096))
    if model == "cliff":
        return 0.95 if tokens <= 16384 else 0.1
    return float(1.0 / (1.0 + np.exp(-(3.0 - step - 0.5 * LANGUAGES.index(language)))))


def answers(questions: int = 100, seed: int = 1, models: tuple[str, ...] = ("slope", "cliff")) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        Row(f"q{number}", model, language, tokens + int(rng.integers(-200, 200)), bool(rng.random() < chance))
        for number in range(questions)
        for language in LANGUAGES
        for tokens in LENGTHS
        for model in models
        for chance in [truth(model, language, tokens)]
    ]


def by_cell(parsed: CapabilityFile) -> Mapping[tuple[str, SuccessCell], ChanceEntry]:
    """Entries by model and cell."""
    return {
        (model, SuccessCell(entry.language, entry.bucket_tokens, entry.task)): entry
        for model, entries in parsed.models.items()
        for entry in entries
    }


def test_chances_are_near_the_truth_and_intervals_hold_it() -> None:
    covered, off, count = 0, [], 0
    for seed in range(3):
        for (model, cell), entry in by_cell(fit(answers(seed=seed), seed)).items():
            real = truth(model, cell.language, cell.bucket_tokens)
            covered += entry.low <= real <= entry.high
            off.append(abs(entry.success - real))
            count += 1
    assert np.mean(off) < 0.05
    assert covered / count > 0.85


def retries(questions: int, correlation: float, chances: tuple[float, ...], seed: int) -> list[Row]:
    """Answers of greedy models asked in a random order, or best first, until one is right."""
    rng, names = np.random.default_rng(seed), [f"m{number}" for number in range(len(chances))]
    limits = [NormalDist().inv_cdf(chance) for chance in chances]
    rows = []
    for question in range(questions):
        ease = np.sqrt(correlation) * rng.normal() + np.sqrt(1.0 - correlation) * rng.normal(size=len(names))
        first = rng.permutation(len(names)) if rng.random() < 0.5 else np.argsort(chances)[::-1]
        tried: tuple[str, ...] = ()
        for at in first:
            rows.append(Row(f"q{question}", names[at], "en", 4096, bool(ease[at] < limits[at]), "", tried))
            if rows[-1].correct:
                break
            tried = (*tried, names[at])
    return rows


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_retries_fit_what_a_failure_says_and_leave_the_base_chance_alone(correlation: float) -> None:
    rows = retries(6000, correlation, (0.8, 0.6, 0.42), seed=1)
    fitted = fit(rows, 0)
    base = np.array([fitted.models[f"m{number}"][0].success for number in range(3)])
    assert base == pytest.approx([0.8, 0.6, 0.42], abs=0.05)
    after = after_failures(base, np.array([True, True, False]), fitted.ease_spread)
    others = [row.correct for row in rows if row.tried_models in {("m0", "m1"), ("m1", "m0")}]
    assert after.tolist() == [*base[:2], pytest.approx(np.mean(others), abs=0.05)]
    assert bool(np.mean(others) < 0.15) is (correlation > 0.0)


def test_nothing_is_told_beyond_what_was_seen() -> None:
    rows = [row for row in answers() if not (row.language == "zh" and row.prompt_tokens > 10_000)]
    rows = [row for row in rows if not (row.language == "ja" and 6_000 < row.prompt_tokens < 12_000)]
    entries = by_cell(fit(rows, 0))
    lengths = {language: [c.bucket_tokens for m, c in entries if (m, c.language) == ("slope", language)]
               for language in LANGUAGES}  # fmt: skip
    assert lengths == {"en": list(LENGTHS), "ja": list(LENGTHS), "zh": [4096, 8192]}
    hole = entries["slope", SuccessCell("ja", 8192)]
    assert hole.rows == 0
    around = entries["slope", SuccessCell("ja", 4096)]
    assert hole.high - hole.low > around.high - around.low


def test_the_command_writes_what_the_picker_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "capability.yaml"
    results.write_bytes(msgspec.json.Encoder().encode_lines(answers(30)))
    assert command("capability", "fit", results, "--out", out) == 0
    parsed = parse_capability(out.read_bytes(), "capability.yaml")
    assert parsed == fit(answers(30), 0)
    assert "held-out answers" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capability.yaml", "results.jsonl"]


def judged_folder(folder: Path, *, decision: dict[str, Any], feedback: dict[str, Any]) -> Path:
    """Two decisions and a verdict on the second, some of their fields replaced."""
    records = [to_record(taken) for taken, _ in decided(2, "laar")]
    records[1]["request"]["language"] = "en"
    records[1] |= decision
    records.append(verdict_record(AnswerVerdict(id=records[1]["id"], correct=True), 1.0) | feedback)
    path = folder / "records-20260101T000000.000000Z-1-00000000.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("decision", "feedback", "words"),
    [
        ({"served_model": "m" * 513}, {}, r"line 2: .*decision.* length <= 512 - at `\$\.model`"),
        ({}, {"correct": "yes"}, r"line 3: .*feedback.*bool.* at `\$\.correct`"),
    ],
)
def test_a_record_that_makes_no_answer_is_named(
    tmp_path: Path, decision: dict[str, Any], feedback: dict[str, Any], words: str
) -> None:
    path = judged_folder(tmp_path, decision=decision, feedback=feedback)
    with pytest.raises(EppError, match=words) as caught:
        read_rows(tmp_path)
    assert str(path) in str(caught.value)


def test_the_last_verdict_on_a_recorded_answer_counts(tmp_path: Path) -> None:
    judged_folder(tmp_path, decision={"served_model": ""}, feedback={})  # of a model that nobody named
    with pytest.raises(EppError, match="no checked answers"):
        read_rows(tmp_path)
    path = judged_folder(tmp_path, decision={"served_model": "m"}, feedback={"correct": False})
    with path.open("a") as file:
        for name, correct in (("id-1", True), ("unknown", True)):
            file.write(json.dumps(verdict_record(AnswerVerdict(id=name, correct=correct), 2.0)) + "\n")
    (row,) = read_rows(tmp_path)
    assert (row.model, row.language, row.correct, row.tried_models) == ("m", "en", True, ())


def test_a_recorded_retry_names_who_failed(tmp_path: Path) -> None:
    path = judged_folder(tmp_path, decision={"served_model": "m"}, feedback={})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["request"]["tried_models"] = ["a", "b"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row.tried_models for row in read_rows(tmp_path)] == [("a", "b")]
