"""Generate `epp/pb/` from the proto files below this folder: ``python protos/generate.py``.

Proto files lie under the path of the package that their code goes to (`protos/epp/pb/x.proto` becomes
`epp/pb/x_pb2.py` and `x_pb2.pyi`), so that what protoc writes imports as it stands.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

SOURCES = Path(__file__).resolve().parent

#: protoc's stubs name `Mapping` bare, which strict mypy refuses.
STUB_HEADER = '# mypy: disable-error-code="type-arg"\n'


def generate(into: Path) -> None:
    """Run protoc over all sources.

    Raises:
        RuntimeError: protoc refused a source (it has said why on stderr).
    """
    from grpc_tools import protoc  # noqa: PLC0415  # a development tool: only this step needs it

    sources = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        ["protoc", f"-I{SOURCES}", f"-I{well_known}", f"--python_out={into}", f"--pyi_out={into}", *sources]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    for source in sources:
        stub = into / source.replace(".proto", "_pb2.pyi")
        stub.write_text(STUB_HEADER + stub.read_text())


if __name__ == "__main__":
    generate(SOURCES.parent)
