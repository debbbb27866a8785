"""Count a request's instructions with a queue in the picker and without, where clocks are too coarse.

Run `python -m epp_lab.bench.instructions`; it needs valgrind. Counted are the decision on a warm prompt of
1,000 tokens and the reports on it, while nothing waits, without the transport.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time

from epp.extproc.types import Destination
from epp.schedule.waiting import at_once
from epp_lab.bench.core import batch, report_ms
from epp_lab.bench.rig import decide, rig

ENDPOINTS, UNCOUNTED = (4, 100), 20
_VALGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no")


def _count(state: str) -> None:
    """Let valgrind count this process from now on, or no more."""
    subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, stdout=sys.stderr)  # noqa: S603, S607


def work(endpoints: int, queue: str) -> None:
    """Decide and report requests, the first ones uncounted, and print how many were counted."""
    earlier, requests = batch("1k", 1)
    gc.disable()
    with rig(endpoints, queue={"enabled": queue == "on"}) as app:
        for body in earlier:
            decide(app, body)
        for at in range(0, len(requests), UNCOUNTED):
            if at == UNCOUNTED:
                _count("on")
            since_s = time.monotonic()
            found = [at_once(app.director.direct(one, since_s=since_s)) for one in requests[at:][:UNCOUNTED]]
            picks = [(one.decision_id, one.destination) for one in found if isinstance(one, Destination)]
            report_ms(app, picks)
        _count("off")
        print(len(requests) - UNCOUNTED)


def main() -> None:
    """Print the instructions of a request, and by how much a queue raises them."""
    for endpoints in ENDPOINTS:
        each: list[float] = []
        for queue in ("off", "on"):
            command = [*_VALGRIND, sys.executable, "-m", "epp_lab.bench.instructions", str(endpoints), queue]
            environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
            ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603
            (collected,) = re.findall(r"Collected : (\d+)", ran.stderr)
            each.append(int(collected) / int(ran.stdout.split()[-1]))
        off, on = each
        print(f"{endpoints} endpoints: {off:,.0f} a request, {on:,.0f} with a queue ({on / off - 1:+.1%})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]), sys.argv[2])
    else:
        main()
