"""Who may import whom, what pure code may not touch, and how large things may grow."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "epp"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "pb" not in path.relative_to(PACKAGE).parts)

#: What each part may import of ours besides itself. `config` is read by whoever is configured by it.
BASE = {"errors", "clock", "keyed_uniform", "view"}
ALLOWED = {
    "errors": set(),
    "clock": set(),
    "keyed_uniform": set(),
    "threads": set(),
    "view": set(),
    "policies": {"view", "keyed_uniform", "errors"},
    "prompt": BASE,
    "signals": BASE | {"prompt"},
    "config": BASE | {"policies", "signals"},
    "extproc": BASE | {"pb"},
    "tuner": BASE | {"config"},
    "decide": BASE | {"config", "policies", "prompt", "signals", "tuner"},
    "client": set(),
    "http2": set(),
    "laar": BASE | {"config", "decide", "signals"},
    "learner": BASE | {"config", "decide", "policies", "tuner"},
    "sim": BASE | {"config", "decide", "policies", "prompt", "signals"},
    "sidecar": BASE | {"config", "decide", "server"},
    "replay": BASE | {"config", "decide", "laar", "learner", "policies", "prompt", "signals", "sim", "tuner"},
    "kube": BASE | {"config", "threads"},
    "wan": BASE,
    "envoy": BASE | {"config", "signals"},
    "llmd": BASE | {"config", "policies"},
    "tokenizer": BASE | {"config", "prompt"},
    "server": BASE
    | {"config", "decide", "extproc", "http2", "kube", "llmd", "pb", "policies", "prompt", "signals"}
    | {"threads", "tokenizer", "tuner"},
}
#: Commands compose strangers; nobody imports them.
COMPOSERS = {"cli", "bench", "demo", "lab", "learn", "tune", "__main__", "__init__"}

PURE = {
    "errors", "clock", "keyed_uniform", "view", "policies", "prompt", "signals", "extproc", "http2", "llmd",
    "tuner", "learner",
}  # fmt: skip
PURE_FILES = {
    "schedule/model_watch.py",
    "schedule/rerun.py",
    "schedule/select.py",
    "schedule/arms.py",
    "schedule/prompt_roots.py",
    "schedule/weights.py",
    "schedule/filters.py",
    "schedule/subset.py",
    "schedule/picker.py",
    "schedule/decision.py",
    "kube/keys.py",
    "kube/objectives.py",
    "kube/objects.py",
    "kube/reconcile.py",
    "kube/slices.py",
    "server/turns.py",
}
IMPURE_IMPORTS = {
    "aiohttp", "asyncio", "grpc", "http", "logging", "os", "random", "requests", "secrets", "socket", "subprocess",
    "threading", "time", "urllib",
}  # fmt: skip

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "epp" else {module}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in COMPOSERS:
        return
    assert part in ALLOWED, f"{part} has no level: add it to the table and to ARCHITECTURE.md"
    for name in imports(path):
        if name.startswith("epp."):
            target = name.split(".")[1]
            assert target == part or target in ALLOWED[part] or target == "__version__", (
                f"{path} imports {name}"
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_code_has_no_io_and_no_clock(path: Path) -> None:
    inner = str(path.relative_to(PACKAGE))
    if part_of(path) not in PURE and inner not in PURE_FILES:
        return
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & IMPURE_IMPORTS, f"{path} imports {tops & IMPURE_IMPORTS}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"{path}:{node.lineno}"


def test_sizes() -> None:
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        text = path.read_text()
        assert len(text.splitlines()) <= MAX_FILE_LINES, f"{path} is too long"
        for node in ast.walk(ast.parse(text)):
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
