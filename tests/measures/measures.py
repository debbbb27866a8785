"""Measure the size of the code base and print it beside its limits and goals.

    python -m tests.measures.measures            # the table; a minute
    python -m tests.measures.measures --slow     # measures mutants, coverage and test time (hours)

Tokens come from the source text, by `tokenize`; the request path from a profile of one buffered chat; the
modules from a process that imports `epp serve`. `measures.json` holds the goal of each figure and the limits
of a few, `measures_slow.json` what takes hours, with its commit.
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
from pathlib import Path

from grimp import build_graph

from epp_lab.experiment import execute
from epp_lab.origin import current_commit
from tests.measures.mutants import EXPERIMENT as MUTANTS
from tests.measures.request_path import request_path

ROOT = Path(__file__).parents[2]
LIMITS = Path(__file__).with_name("measures.json")
SLOW = Path(__file__).with_name("measures_slow.json")
SERVES, LEARNS = "epp", "lab/epp_lab"
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
import sys
import epp.cli, epp.server.command, epp.server.app
print(sum(name.split(".")[0] == "epp" and bool(getattr(each, "__file__", None)) for name, each in sys.modules.items()))
"""


def tokens_of(*tops: str) -> int:
    """Count the code tokens of the Python files below some folders, generated protobuf classes left out."""
    paths = (path for top in tops for path in (ROOT / top).rglob("*.py") if not path.name.endswith("_pb2.py"))
    return sum(_tokens(path.read_text(encoding="utf-8")) for path in paths)


def _tokens(text: str) -> int:
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in _LAYOUT and token.start not in docstrings for token in found)


def other_tokens() -> int:
    """Count the code tokens of Lua, C and JavaScript, vendored files left out."""
    paths = [p for end in ("lua", "c", "h", "js") for p in (ROOT / "epp").rglob(f"*.{end}")]
    texts = (path.read_text(encoding="utf-8") for path in paths if "vendor" not in path.parts)
    return sum(match["comment"] is None for text in texts for match in _OTHER.finditer(text))


def served_modules() -> int:
    """Count the modules of ours that `epp serve` imports, in a process of its own."""
    ran = subprocess.run(  # our own interpreter and text
        [sys.executable, "-c", _CLOSURE], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return int(ran.stdout)


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
    """Measure the source text, what is imported and the request path."""
    path, pages = request_path(), [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return {
        "code tokens that serve": tokens_of(SERVES),
        "code tokens that learn and measure": tokens_of(LEARNS),
        "tokens of Lua, C, JS": other_tokens(),
        "test code tokens": tokens_of("tests"),
        "modules in import circles": len(circular()),
        "modules that epp serve imports": served_modules(),
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
        told = table[name]
        limit, mark = told.get("limit"), "" if value <= told["goal"] else "  above its goal"
        shown = "" if limit is None else f"{limit:,d}"
        print(f"{name:36s}{value:10,d}{shown:>10s}{told['goal']:10,d}{mark}")
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


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", action="store_true", help="measure mutants, coverage and test time first")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    arguments = parser.parse_args()
    if arguments.slow:
        measure_slowly(arguments.jobs)
    show(figures())
    return 0


if __name__ == "__main__":
    sys.exit(main())
