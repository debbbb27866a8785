"""How large things may grow. Who may import whom is a contract of import-linter, in `pyproject.toml`."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = [
    path
    for top in ("epp", "lab/epp_lab")
    for path in sorted((ROOT / top).rglob("*.py"))
    if "pb" not in path.relative_to(ROOT).parts
]

MAX_FUNCTION_LINES = 60


def test_functions_are_short() -> None:
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno
                assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"


def test_nothing_is_left_unfinished() -> None:
    markers = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]))
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for name in listed.stdout.split():
        path = ROOT / name
        if path.exists():
            assert not markers.search(path.read_text()), f"{name} has a task marker"
