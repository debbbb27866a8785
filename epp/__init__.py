"""gorgo-epp: an endpoint picker for LLM inference behind Envoy."""

from __future__ import annotations

import os

__version__ = "0.1.0"

# With threads of its own a BLAS makes a product of 256 rows, which takes under a millisecond, wait for cores
# that others use: 20 times as long on a busy machine. NumPy reads this when imported; what you set wins.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
