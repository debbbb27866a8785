"""The `epp learn` command: the learner's I/O, composed from `learner`, `tune` and `decide`.

A learner is one thread of one core, whatever the machine has: it must never take what pickers need. NumPy's
linear algebra reads how many threads it may have when it is loaded, so it is told before.
"""

from os import environ as _environ

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    _environ.setdefault(_name, "1")
