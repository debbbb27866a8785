"""Change one operator or number of the core at a time, and see whether a test fails.

A cell is a folder, a seed the number of a mutant: which place of which file is changed follows from both.
Each runs in a copy of the source tree, against tests of its folder and the golden records.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

from epp_lab.experiment import Experiment

ROOT = Path(__file__).parents[2]
FOLDERS = ("policies", "schedule", "extproc", "prefix_cache", "signals")
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "/": "*",
    "and": "or", "or": "and", "True": "False", "False": "True", "min": "max", "max": "min", "not": "",
}  # fmt: skip
#: Longer than any of the tests: a mutant that hangs is found, too.
LIMIT_S = 1200
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "*-out", ".*_cache", "__pycache__")


def mutants(folder: str) -> list[tuple[Path, tokenize.TokenInfo, str]]:
    """List the places of a folder that can be changed: file, token, and what takes its place."""
    found = []
    for path in sorted((ROOT / "epp" / folder).rglob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NUMBER:
                found.append((path, token, f"({token.string} + 1)"))
            elif token.string in SWAPS:
                found.append((path, token, SWAPS[token.string]))
    return found


def changed(path: Path, token: tokenize.TokenInfo, by: str) -> str:
    """Return a file's text with a token replaced."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    (row, begin), (_, end) = token.start, token.end
    lines[row - 1] = lines[row - 1][:begin] + by + lines[row - 1][end:]
    return "".join(lines)


def run(folder: str, _: str, seed: int) -> dict[str, float]:
    """Return whether the tests kill a mutant."""
    path, token, by = random.Random(f"{folder} {seed}").choice(mutants(folder))
    tests = (f"tests/{folder}", "tests/acceptance/test_golden.py")
    with tempfile.TemporaryDirectory(prefix="epp-mutant-") as name:
        tree = Path(name) / "tree"
        shutil.copytree(ROOT, tree, ignore=_LEFT_OUT)
        (tree / path.relative_to(ROOT)).write_text(changed(path, token, by), encoding="utf-8")
        try:
            done = subprocess.run(  # our own interpreter
                (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests),
                cwd=tree,
                env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'lab'}"},
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"killed": 1.0}
    if done.returncode not in (0, 1, 2):  # 2: a test file cannot be imported any more
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-500:]!r}")
    return {"killed": float(done.returncode != 0)}


EXPERIMENT = Experiment(
    question="How many changes of an operator or number in the core do its tests find?",
    cells=FOLDERS,
    entries=("tests",),
    events=("killed",),
    run=run,
    minutes=55,
    seeds=60,
)
