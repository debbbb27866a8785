"""The observing filter's compiled part: an Envoy dynamic module in C, built where an Envoy is to load it.

Owns the sources, the way to build them and the versions of Envoy that they are for. Optional: without the
module `observe.lua` reads answers to their end itself, with the same findings, at several times the cost for
each piece of an answer (docs/performance.md). A compiler is needed here and nowhere else.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from epp.errors import EppError

MODULE_SINCE = (1, 40)
"""First version whose interface for dynamic modules is the one that the module declares."""

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=default")


def build(out: Path, compiler: str = "") -> None:
    """Compile the module.

    Args:
        out: the shared object to write.
        compiler: command of a C compiler; the environment's ``CC``, else ``cc``, when empty.

    Raises:
        EppError: there is no compiler, or it fails; with its words.
    """
    _compile(out, compiler, "scan.c", "module.c")


def build_scan(out: Path, compiler: str = "") -> None:
    """Compile what needs no Envoy around it, for tests; arguments and errors as `build`."""
    _compile(out, compiler, "scan.c")


def _compile(out: Path, compiler: str, *sources: str) -> None:
    command = shlex.split(compiler or os.environ.get("CC", "") or "cc")
    words = (*command, *_FLAGS, "-o", str(out), *(str(_FOLDER / source) for source in sources))
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # as asked
    except OSError as error:
        raise EppError(f"no C compiler: {error}; name one in CC") from error
    if done.returncode:
        raise EppError(f"{command[0]} does not compile the module: {done.stderr.strip()[-2000:]}")
