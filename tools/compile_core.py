"""The optional compiled core: which modules it holds, and how they are compiled with mypyc.

`setup.py` asks here for extension modules when it is told to; `python -m tools.compile_core FOLDER` makes a
tree of its own, for tests and for `epp bench core --against FOLDER`. Nothing is written beside the sources.

mypyc compiles our modules by their annotations, sources unchanged but for one thing: the constructor of a
dataclass stays interpreted there, and a request makes some twenty. So dataclasses are spelled out before
(`tools.plain_classes`). No interpreted class can inherit from a compiled one, so modules of a family are in
the list together or not at all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.plain_classes import spelled_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from setuptools import Extension

ROOT = Path(__file__).resolve().parent.parent
#: From canonical bytes to the pick, and what learns from the answer. Left out: `epp.view` (descriptors),
#: policies of other families, parsers (msgspec compiles them already), all that waits for input.
MODULES = (
    "epp/draw.py",
    "epp/decide/arms.py",
    "epp/decide/capable.py",
    "epp/decide/eligibility.py",
    "epp/decide/in_flight.py",
    "epp/decide/picker.py",
    "epp/decide/prompt_roots.py",
    "epp/decide/records.py",
    "epp/decide/select.py",
    "epp/decide/subset.py",
    "epp/policies/gorgo.py",
    "epp/policies/gorgo_ms.py",
    "epp/policies/laar.py",
    "epp/prompt/blocks.py",
    "epp/prompt/canonical.py",
    "epp/prompt/image_size.py",
    "epp/prompt/media.py",
    "epp/prompt/tokens.py",
    "epp/prompt/types.py",
    "epp/signals/answers.py",
    "epp/signals/calibration.py",
    "epp/signals/capacity.py",
    "epp/signals/engine_metrics.py",
    "epp/signals/first_tokens.py",
    "epp/signals/fleet.py",
    "epp/signals/health.py",
    "epp/signals/ledger.py",
    "epp/signals/model_means.py",
    "epp/signals/measured.py",
    "epp/signals/paths.py",
    "epp/signals/popularity.py",
    "epp/signals/prefix_index.py",
    "epp/signals/prefix_slot.py",
    "epp/signals/rates.py",
    "epp/signals/rtt.py",
    "epp/signals/slots.py",
    "epp/signals/slow.py",
    "epp/signals/warm_index.py",
)
#: What compiling reads types from, beside the package's own dependencies.
REQUIRES = ("mypy[mypyc]>=2.4,<3", "numpy>=1.26", "msgspec>=0.19", "xxhash>=3.5", "setuptools>=77")
#: The name of the library that all compiled modules share.
_GROUP = "gorgo_epp"


def has_compiler() -> bool:
    """Whether there is a C compiler where setuptools would look for one."""
    words = os.environ.get("CC", "cc").split()
    return bool(words) and shutil.which(words[0]) is not None


def extensions(work: Path, modules: Sequence[str] = MODULES, *, optimize: int = 2) -> list[Extension]:
    """The extension modules, their C code written under ``work``.

    Args:
        work: an empty or new folder.
        modules: files to compile, from the root of the sources.
        optimize: the C compiler's level.

    Raises:
        ImportError: mypyc is not installed.
        SystemExit: mypy objects; it has said to what.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - wanted only by builds that ask for it

    sources = work / "sources"
    shutil.copytree(ROOT / "epp", sources / "epp", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in modules:
        (sources / module).write_text(spelled_out((ROOT / module).read_text(), _source_of))
    with _inside(sources):
        made: list[Any] = mypycify(
            [
                "--config-file=",
                "--ignore-missing-imports",
                "--follow-imports=silent",
                f"--cache-dir={work / 'types'}",
                *modules,
            ],
            opt_level=str(optimize),
            debug_level="0",
            group_name=_GROUP,
            target_dir=str(work / "c"),
        )
    return made


def build_tree(target: Path, modules: Sequence[str] = MODULES, *, optimize: int = 2) -> None:
    """A copy of the package under ``target``, with these modules compiled beside their sources.

    Raises:
        SystemExit: they do not compile.
    """
    from setuptools import Distribution  # noqa: PLC0415 - slow to load
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="epp-compile-") as work:
        made = Path(work) / "made"
        given = extensions(Path(work), modules, optimize=optimize)
        command = build_ext(Distribution({"name": "gorgo-epp", "ext_modules": given}))
        command.build_lib, command.build_temp = str(made), str(Path(work) / "objects")
        command.ensure_finalized()
        command.run()
        # At the end: without its compiled part a tree would be measured as a compiled one.
        shutil.copytree(ROOT / "epp", target / "epp", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copytree(made, target, dirs_exist_ok=True)


def _source_of(module: str) -> str:
    return (ROOT / f"{module.replace('.', '/')}.py").read_text()


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(argv: list[str] | None = None) -> int:
    """Compile into a tree of its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the tree goes; must not have one yet")
    parser.add_argument("--optimize", type=int, default=2, help="the C compiler's level, 0 to 3")
    parser.add_argument("--only", nargs="*", metavar="FILE", help="modules to compile instead of all")
    given = parser.parse_args(argv)
    if not has_compiler():
        print("no C compiler: nothing is compiled", file=sys.stderr)
        return 1
    if (given.folder / "epp").exists():
        print(f"{given.folder} has a tree already: name another folder", file=sys.stderr)
        return 1
    for module in given.only or ():
        if not (ROOT / module).is_file():
            print(f"--only {module}: no such file in {ROOT}", file=sys.stderr)
            return 1
    build_tree(given.folder.resolve(), given.only or MODULES, optimize=given.optimize)
    return 0


if __name__ == "__main__":
    sys.exit(main())
