"""Generate `epp/pb/` from `protos/`, or with `--check` say whether it is fresh.

    python tools/gen_protos.py [--check]

Proto files lie in `protos/` under the path of the package that their code goes to (`protos/epp/pb/x.proto`
becomes `epp/pb/x_pb2.py` and `x_pb2.pyi`), so that what protoc writes imports as it stands. Needs
grpcio-tools.

The check compares the text where the same protoc wrote it, and the embedded descriptors where another
version did: what a newer protoc words differently is no reason to regenerate. Exit status: 0 fresh or
written, 1 stale.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "protos"
TARGET = Path("epp/pb")

#: protoc's stubs name `Mapping` bare, which strict mypy refuses.
STUB_HEADER = '# mypy: disable-error-code="type-arg"\n'


def generate(into: Path) -> list[Path]:
    """Run protoc over all sources and return the written files, relative to ``into``.

    Raises:
        RuntimeError: protoc refused a source (it has said why on stderr).
        ImportError: grpcio-tools is missing.
    """
    from grpc_tools import protoc  # noqa: PLC0415  # a development tool: only this step needs it

    sources = sorted(path.relative_to(SOURCES).as_posix() for path in (SOURCES / TARGET).glob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        ["protoc", f"-I{SOURCES}", f"-I{well_known}", f"--python_out={into}", f"--pyi_out={into}", *sources]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    for stub in into.rglob("*_pb2.pyi"):
        stub.write_text(STUB_HEADER + stub.read_text())
    return sorted(path.relative_to(into) for path in into.rglob("*_pb2.py*"))


def protoc_version(generated: str) -> str:
    """The version that protoc wrote into a generated module."""
    found = re.search(r"^# Protobuf Python Version: (\S+)$", generated, re.MULTILINE)
    return found.group(1) if found else ""


def embedded_descriptor(generated: str) -> bytes:
    """The serialized FileDescriptorProto inside a generated module."""
    for node in ast.walk(ast.parse(generated)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "AddSerializedFile":
            value = ast.literal_eval(node.args[0])
            return value if isinstance(value, bytes) else b""
    return b""


def stale(fresh_root: Path, names: list[Path], root: Path = ROOT) -> list[str]:
    """What differs between fresh code and the committed one, one line each; empty when nothing does."""
    problems = []
    committed = {path.relative_to(root) for path in (root / TARGET).glob("*_pb2.py*")}
    problems += [f"{name}: no source in protos/" for name in sorted(committed - set(names))]
    for name in names:
        if name not in committed:
            problems.append(f"{name}: missing")
            continue
        module = name.with_suffix(".py")
        fresh_module = (fresh_root / module).read_text()
        old_module = (root / module).read_text() if module in committed else ""
        if protoc_version(fresh_module) == protoc_version(old_module):
            same = (fresh_root / name).read_text() == (root / name).read_text()
        else:
            same = embedded_descriptor(fresh_module) == embedded_descriptor(old_module)
        if not same:
            problems.append(f"{name}: differs from its source")
    return problems


def main(argv: list[str] | None = None) -> int:
    """Generate or check; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate epp/pb from protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if epp/pb is stale")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        names = generate(fresh)
        if options.check:
            problems = stale(fresh, names)
            for problem in problems:
                print(problem, file=sys.stderr)
            return 1 if problems else 0
        for old in (ROOT / TARGET).glob("*_pb2.py*"):
            old.unlink()
        for name in names:
            (ROOT / name).write_bytes((fresh / name).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
