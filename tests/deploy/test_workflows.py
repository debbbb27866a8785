from __future__ import annotations

import re
from pathlib import Path

WORKFLOWS = Path(__file__).parents[2] / ".github/workflows"


def test_workflows_pin_actions_by_commit_and_name_the_version() -> None:
    used = [
        line.split("uses:")[1].strip()
        for file in WORKFLOWS.glob("*.yml")
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)] == []
