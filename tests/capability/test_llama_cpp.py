"""A real engine is measured: llama.cpp, whose random model answers nonsense, and cannot take every length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.types import length_bucket
from epp_lab.capability.fit import fit
from epp_lab.capability.results import read_rows
from tests.kit.llama_cpp import running_llama_cpp
from tests.kit.records import command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_llama_cpp_is_measured_up_to_its_context_and_fitted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.jsonl"
    words = ("--languages", "en", "zh", "--questions", "5", "--max-tokens", "64", "--out", file)
    with running_llama_cpp(tmp_path, "tiny") as url:
        assert command("capability", "measure", url, "--lengths", 1024, 4096, *words) == 0
        assert command("capability", "measure", url, "--lengths", 4096, 16_384, *words) == 1
    error = capfd.readouterr().err
    assert f"epp: tiny: {url}/v1/chat/completions: HTTP 400: " in error
    assert "exceeds the available context size" in error
    rows = read_rows(file)
    assert {(row.language, length_bucket(row.prompt_tokens)) for row in rows} == {
        (language, tokens) for language in ("en", "zh") for tokens in (1024, 4096)
    }
    assert len({row.question for row in rows}) == len(rows) == 20
    assert not any(row.correct for row in rows)
    (entries,) = fit(rows).models.values()
    assert max(entry.success for entry in entries) < 0.3
