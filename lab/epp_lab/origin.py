"""Where a report comes from: version, commit, command and date."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from epp import __version__

_ROOT = Path(__file__).parents[2]


def origin() -> dict[str, str]:
    """Describe this run: version, commit, command, and its date, that of ``SOURCE_DATE_EPOCH`` if set."""
    at_s = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    command = Path(sys.argv[0]).stem in ("epp", "__main__")
    words = ["epp", *sys.argv[1:]] if command else ["python", *sys.orig_argv[1:]]
    return {
        "version": __version__,
        "commit": current_commit(),
        "command": shlex.join(words),
        "date": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds"),
    }


def current_commit() -> str:
    """Return the short commit of this source tree, ``unknown`` outside of git."""
    # An installed package may lie inside of another project's repository.
    if not (_ROOT / ".git").exists():
        return "unknown"
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # fixed words
    except FileNotFoundError:  # no git on this machine
        return "unknown"
    return done.stdout.strip() or "unknown"
