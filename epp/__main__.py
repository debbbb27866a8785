"""``python -m epp``: the command line."""

from __future__ import annotations

import sys

from epp.cli import main

sys.exit(main())
