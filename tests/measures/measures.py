"""Measure the size of the code base and print it beside its limits and goals.

    python -m tests.measures.measures            # the table; a minute
    python -m tests.measures.measures --lower    # lowers limits to what is measured, raises none
    python -m tests.measures.measures --slow     # measures mutants, coverage and test time (hours)

Tokens and statements come from the source text, by `tokenize` and `ast`; the request path from a profile of
one buffered chat; the import closure from a process that imports `epp serve`. `measures.json` holds the
limit and the goal of each figure, `measures_slow.json` what takes hours, with its commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high

from grimp import build_graph

from epp_lab.experiment import execute
from epp_lab.origin import current_commit
from tests.measures.mutants import EXPERIMENT as MUTANTS
from tests.measures.request_path import request_path

ROOT = Path(__file__).parents[2]
LIMITS = Path(__file__).with_name("measures.json")
SLOW = Path(__file__).with_name("measures_slow.json")
SERVES, LEARNS = "epp", "lab/epp_lab"
SOURCES = (SERVES, LEARNS, "deploy", "docs", "protos")
#: Layout and comments; what is left is what a reader has to read.
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
#: Comments of Lua, C and JavaScript, strings, and the tokens between them.
_OTHER = re.compile(
    r"(?P<comment>--\[\[.*?\]\]|/\*.*?\*/|//[^\n]*|--[^\n]*)"
    r"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\w+|[^\w\s]",
    re.DOTALL,
)
_CLOSURE = """
import json, sys
import epp.cli, epp.server.command, epp.server.app
ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "epp"]
files = [module.__file__ for module in ours if getattr(module, "__file__", None)]
print(json.dumps([len(files), sum(open(f, encoding="utf-8").read().count("\\n") for f in files)]))
"""


@dataclass
class Size:
    """Sizes of some Python files.

    Attributes:
        tokens: code tokens, without comments and docstrings.
        statements: statements, nested ones included.
        classes: class definitions.
        lines: lines of the files.
        functions: length of each function in lines.
    """

    tokens: int = 0
    statements: int = 0
    classes: int = 0
    lines: int = 0
    functions: list[int] = field(default_factory=list)


def python_size(*tops: str) -> Size:
    """Measure the Python files below some folders, generated protobuf classes left out."""
    size = Size()
    for top in tops:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                _add(size, path.read_text(encoding="utf-8"))
    return size


def _add(size: Size, text: str) -> None:
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        size.statements += isinstance(node, ast.stmt)
        size.classes += isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT and token.start not in docstrings:
            size.tokens += 1
    size.lines += text.count("\n")


def other_tokens() -> int:
    """Count the code tokens of Lua, C and JavaScript, vendored files left out."""
    paths = [p for end in ("lua", "c", "h", "js") for p in (ROOT / "epp").rglob(f"*.{end}")]
    texts = (path.read_text(encoding="utf-8") for path in paths if "vendor" not in path.parts)
    return sum(match["comment"] is None for text in texts for match in _OTHER.finditer(text))


def rows(page: str, section: str = "") -> int:
    """Count the rows of a generated page's tables, of one section where it is named."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(section)[2].partition("\n## ")[0]
    return len(re.findall(r"^\| `", text, re.MULTILINE))


def closure() -> tuple[int, int]:
    """Import `epp serve` in a process of its own; its modules and their lines."""
    ran = subprocess.run(  # our own interpreter and text
        [sys.executable, "-c", _CLOSURE], check=True, capture_output=True, text=True, cwd=ROOT
    )
    modules, lines = json.loads(ran.stdout)
    return modules, lines


def circular() -> list[str]:
    """List the modules that import themselves through others, imports for type checkers counted."""
    graph = build_graph("epp", "epp_lab", exclude_type_checking_imports=False)
    upstream = {name: graph.find_upstream_modules(name) for name in graph.modules}
    return [
        name
        for name in upstream
        if any(name in upstream[one] for one in graph.find_modules_directly_imported_by(name))
    ]


def figures() -> dict[str, int]:
    """Measure the source text, the import closure and the request path."""
    code, tests, (modules, closure_lines) = python_size(*SOURCES), python_size("tests"), closure()
    path = request_path()
    gorgo_ms = ROOT / "epp" / "policies" / "gorgo_ms.py"
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return {
        "code tokens that serve": python_size(SERVES).tokens,
        "code tokens that learn and measure": python_size(LEARNS).tokens,
        "tokens of Lua, C, JS": other_tokens(),
        "statements": code.statements,
        "functions": len(code.functions),
        "classes": code.classes,
        "lines": code.lines,
        "test code tokens": tests.tokens,
        "modules in import circles": len(circular()),
        "serve: modules": modules,
        "serve: lines": closure_lines,
        "median function, lines": median_high(code.functions),
        "largest function, lines": max(code.functions),
        "gorgo_ms.py, lines": gorgo_ms.read_text(encoding="utf-8").count("\n"),
        "configuration keys": rows("configuration.md", "## epp.yaml"),
        "tuner's keys": rows("configuration.md", "## The tuner's settings"),
        "metrics": rows("metrics.md", "## Ours"),
        "words of docs and README": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "request: files": len(path.files),
        "request: calls": path.calls,
        "request: hops": path.hops,
        "request: value types": len(path.value_types),
    }


def show(measured: dict[str, int]) -> None:
    """Print the table: figure, its limit, its goal."""
    table = json.loads(LIMITS.read_text(encoding="utf-8"))
    print(f"{'':36s}{'now':>10s}{'limit':>10s}{'goal':>10s}")
    for name, value in measured.items():
        limit, goal = table[name]
        mark = "" if value <= goal else "  above its goal"
        print(f"{name:36s}{value:10,d}{limit:10,d}{goal:10,d}{mark}")
    if SLOW.exists():
        for name, measured_once in json.loads(SLOW.read_text(encoding="utf-8")).items():
            print(f"{name:36s}{measured_once:>10}")


def measure_slowly(jobs: int) -> None:
    """Measure mutants killed, ``jobs`` at a time, branch coverage and test time, and keep them."""
    commit = current_commit()
    kept = ROOT / "build" / "lab" / f"mutants-{commit}.jsonl"
    runs = execute(MUTANTS, seeds=range(MUTANTS.seeds), jobs=jobs, kept=kept)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile"]
    begun_s = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT)  # our own interpreter
    test_s = time.monotonic() - begun_s
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        flags = ["--cov=epp", "--cov=epp_lab", "--cov-branch", f"--cov-report=json:{report}"]
        subprocess.run([*command, *flags], check=True, cwd=ROOT)
        covered = json.loads(report.read_text(encoding="utf-8"))["totals"]["percent_covered"]
    found = {
        "commit": commit,
        f"mutants killed of {len(runs)}": sum(run.value("killed") for run in runs),
        "branch coverage, %": round(covered, 1),
        "test time, s": round(test_s),
    }
    SLOW.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def lower(measured: dict[str, int]) -> None:
    """Write lower limits for the figures that have fallen."""
    table = json.loads(LIMITS.read_text(encoding="utf-8"))
    for name, value in measured.items():
        table[name][0] = min(table[name][0], value)
    LIMITS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Print the table, after lowering its limits where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lower", action="store_true", help="lower limits to what is measured")
    parser.add_argument("--slow", action="store_true", help="measure mutants, coverage and test time first")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    arguments = parser.parse_args()
    if arguments.slow:
        measure_slowly(arguments.jobs)
    measured = figures()
    if arguments.lower:
        lower(measured)
    show(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
