"""The bench of the decision with a real tokenizer: it counts, and says so where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.cli import main
from epp.errors import ConfigError, EppError
from epp.lab.bench import tokens
from epp.lab.bench.figures import Figures

FIXTURES = Path(__file__).parent.parent / "tokens" / "data"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SIZES", {"72 KB": 300})
    monkeypatch.setattr(tokens, "COUNT", 2)
    monkeypatch.setattr(tokens, "STALLS", 1)


def test_a_round_gives_the_figures_that_the_goals_name() -> None:
    found = Figures()
    tokens.measure(found, 0, FIXTURES / "bytes")
    assert set(found.found) == {"tokens/72 KB", "tokens/72 KB stall"}
    assert all(figure.median > 0.0 for figure in found.found.values())


def test_prompts_that_cannot_be_counted_are_no_measurement(tmp_path: Path) -> None:
    for file in (FIXTURES / "bytes").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ raise_exception(\'no\') }}"}')
    with pytest.raises(EppError, match="estimated"):
        tokens.measure(Figures(), 0, tmp_path)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        tokens.measure(Figures(), 0, tmp_path)


def test_the_command_asks_for_the_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tokens"]) != 0
    assert "--tokenizer" in capsys.readouterr().err
