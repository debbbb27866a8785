r"""Count a request's instructions where clocks are too coarse, with the sections of a configuration as JSON.

    valgrind --tool=callgrind --instr-atstart=no \
        python -m epp_lab.bench.instructions '{"queue": {"enabled": true}}'

Of what valgrind says it collected, a hundredth is one request: the decision on a warm prompt of 1,000 tokens
among 100 endpoints, and the reports on it, without the transport.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time

from epp.extproc.types import Destination
from epp.schedule.waiting import at_once
from epp_lab.bench.core import ENDPOINTS, batch, report_ms
from epp_lab.bench.rig import decide, rig

COUNTED = 100


def main(sections: str) -> None:
    """Decide and report requests, and let valgrind count the last ones."""
    earlier, requests = batch("1k", 1)
    gc.disable()
    with rig(ENDPOINTS, **json.loads(sections)) as app:
        for body in earlier:
            decide(app, body)
        for part in (requests[:-COUNTED], requests[-COUNTED:]):
            since_s = time.monotonic()
            found = [at_once(app.director.direct(one, since_s=since_s)) for one in part]
            report_ms(
                app, [(one.decision_id, one.destination) for one in found if isinstance(one, Destination)]
            )
            state = "on" if part[0] is requests[0] else "off"
            subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True)  # noqa: S603, S607


if __name__ == "__main__":
    main(sys.argv[1])
