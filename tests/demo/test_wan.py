"""`make demo-wan`: what is decided before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.demo.wan import main
from tests.kit.wan import require_network

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_with_files_of_others_is_not_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_network()
    (tmp_path / "thesis.tex").write_text("years")
    assert main(["--out", str(tmp_path)]) == 1
    assert "is not the output of a demo" in capsys.readouterr().out
    assert (tmp_path / "thesis.tex").read_text() == "years"
