"""`epp demo`: what is refused before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.cli import main
from epp_lab.demo.example import exit_status, output

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_policy_that_there_is_not_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "out"), "--against", "random,least"]) == 2
    assert "unknown policy 'least'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_demo_in_which_every_request_failed_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status({"random": []}) == 1
    assert "random: no request was answered" in capsys.readouterr().err


def test_what_an_earlier_demo_left_is_removed_and_nothing_behind_its_links(tmp_path: Path) -> None:
    folder, kept = tmp_path / "new" / "out", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    with output(folder):
        (folder / "records").mkdir()
        (folder / "linked").symlink_to(kept)
    with output(folder):
        assert [path.name for path in folder.iterdir()] == [".epp-demo"]
    assert (kept / "file").exists()
