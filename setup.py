"""The optional compiled core: ``EPP_COMPILE=1 pip install .``; pyproject.toml says everything else.

Without that word, and where there is no C compiler, the package is Python alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import setup


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
        needed["ext_modules"] = extensions(Path(tempfile.mkdtemp(prefix="epp-compile-")))
    return needed


setup(**_asked())
