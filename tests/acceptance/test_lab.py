"""Comparing, learning and measuring: simulated, from traces and from records."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

from tests.acceptance.kit import EPP, Stack, answers, free_ports, run, until

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {
        "timestamp": 400 * n,
        "input_length": 1500,
        "output_length": 20,
        "hash_ids": [1, 2, n + 10],
    }
    for n in range(60)
]


def trace(folder: Path) -> str:
    """Write a short trace in Mooncake's format."""
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return str(file)


def test_policies_are_compared_on_a_generated_load_and_it_repeats(tmp_path: Path) -> None:
    words = (
        *("lab", "compare"),
        "--workload",
        "demo",
        "--policy",
        "gorgo,least-request",
        "--seeds",
        "2",
        "--workers",
        "1",
    )
    results = []
    for name in ("one", "two"):
        run(*words, "--out", str(tmp_path / name))
        results.append(json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8")))
        assert (tmp_path / name / "report.html").exists()
    text = [json.dumps(_figures(result), sort_keys=True) for result in results]
    assert text[0] == text[1]


def _figures(result: object) -> object:
    """What is measured, without what names the run itself."""
    if isinstance(result, dict):
        return {
            k: _figures(v) for k, v in result.items() if k not in {"made", "seconds", "command", "wall_s"}
        }
    return [_figures(each) for each in result] if isinstance(result, list) else result


def test_a_trace_is_read_and_replayed(tmp_path: Path) -> None:
    stats = json.loads(run("lab", "trace", trace(tmp_path), "--json"))
    assert "60" in json.dumps(stats)
    printed = run(
        *("lab", "compare", "--trace", trace(tmp_path), "--policy", "gorgo-ms,round-robin", "--warmup", "0"),
        *("--workers", "1", "--out", str(tmp_path / "out")),
    )
    assert re.search(r"round-robin .*[+-]\d.* %? ?\[.*\]", printed), "an interval against the judged policy"
    assert "TTFT p95: gorgo-ms against round-robin" in printed
    assert "round-robin" in (tmp_path / "out" / "results.json").read_text(encoding="utf-8")


def test_a_capability_file_is_fitted_from_checked_answers(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    with answers.open("w", encoding="utf-8") as file:
        for number in range(400):
            for model, right in (("small", number % 4 == 0), ("large", number % 10 != 0)):
                file.write(
                    json.dumps(
                        {
                            "question": f"q{number}",
                            "model": model,
                            "language": "en",
                            "prompt_tokens": 2000,
                            "correct": right,
                        }
                    )
                    + "\n"
                )
    run("capability", "fit", str(answers), "--out", str(tmp_path / "capability.yaml"))
    text = (tmp_path / "capability.yaml").read_text(encoding="utf-8")
    assert "small" in text
    assert "large" in text


def test_a_measurement_stopped_by_ctrl_c_goes_on_and_is_fitted(tmp_path: Path) -> None:
    cells = [{"language": language, "bucket_tokens": 1024, "success": 0.6} for language in ("en", "ja")]
    file, (port,) = tmp_path / "answers.jsonl", free_ports(1)
    url = f"http://127.0.0.1:{port}"
    words = [*EPP, "capability", "measure", url, "--languages", "en", "ja", "--lengths", "1024"]
    words += ["--questions", "60", "--at-once", "1", "--out", str(file)]
    with Stack(tmp_path) as stack:
        stack.write("truth.yaml", {"version": 1, "models": {"phi": cells}})
        truth = ["--accuracy", str(tmp_path / "truth.yaml")]
        stack.start("sim", [*EPP, "lab", "sim", *truth, "--replica", f"name=a,port={port},model=phi"])
        until(lambda: answers(f"{url}/v1/models"))
        first = stack.start("first", words)
        until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 3)
        first.signal(signal.SIGINT)
        assert first.wait() == 130, first.log()
        before = file.read_text(encoding="utf-8").splitlines()
        assert len(before) < 120
        run(*words[len(EPP) :])
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[: len(before)] == before
    rows = [json.loads(line) for line in lines]
    assert len({row["question"] for row in rows}) == len(rows) == 120
    assert 0 < sum(row["correct"] for row in rows) < 120
    assert "phi" in run("capability", "fit", str(file), "--out", str(tmp_path / "capability.yaml"))
