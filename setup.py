"""The optional compiled core: ``EPP_COMPILE=1 pip install .``; pyproject.toml says everything else.

Without that word, and where there is no C compiler, the package is Python alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import setup

_WORK = Path(__file__).resolve().parent / "build" / "compiled"


def _asked() -> dict[str, Any]:
    if os.environ.get("EPP_COMPILE", "") in ("", "0"):
        return {}
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # build front ends do not
    from tools.compile_core import REQUIRES, extensions, has_compiler  # noqa: PLC0415

    if not has_compiler():
        print("EPP_COMPILE is set, but there is no C compiler: the core stays interpreted", file=sys.stderr)
        return {}
    needed: dict[str, Any] = {"setup_requires": list(REQUIRES)}
    if {"bdist_wheel", "build", "build_ext", "install"} & set(sys.argv):  # not for metadata, nor in place
        shutil.rmtree(_WORK, ignore_errors=True)
        needed["ext_modules"] = found = extensions(_WORK)
        for one in found:  # setuptools takes no others
            one.sources = [os.path.relpath(source) for source in one.sources]
            one.depends = [os.path.relpath(source) for source in one.depends]
    return needed


setup(**_asked())
