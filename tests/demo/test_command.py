"""`epp demo`: what is refused before anything runs, and a demo that has shown nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from tests.kit.envoy import require_envoy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rate", "1e9"], "a demo sends at most 100,000 requests"),
        (["--policy", "gorgo-mss"], "--policy: unknown policy 'gorgo-mss' (did you mean 'gorgo-ms'?)"),
        (["--against", "random,least"], "--against: unknown policy 'least'"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_envoy()
    assert main(["demo", "--out", str(tmp_path / "out"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_demo_in_which_every_request_failed_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session's name cannot be a header's value; the policy is not compared with itself."""
    require_envoy()
    row = {"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1], "session_id": "a\nb"}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out[" / "b]"  # as it stands, and not as a style's end
    words = ["demo", "--trace", str(tmp_path / "trace.jsonl"), "--out", str(out), "--policy", "random"]
    assert main([*words, "--against", "random"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("epp: random: no request was answered, the last one because of: ValueError:")
    assert "out[/b]/records" in said.out
    assert not (out / "random").exists()
