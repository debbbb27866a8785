"""Ports of loopback: in a lane of each worker, below those that the system gives to whoever asks for any."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack

#: Workers of one run have one parent, so that no two share a lane.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_LANE = 20_000 + (os.getppid() + _WORKER) % 32 * 350
_ports = itertools.cycle(range(_LANE, _LANE + 350))


def free_ports(count: int = 1) -> int:
    """Return the first of so many ports in a row that nobody listens on, and nobody else takes soon."""
    for first in _ports:
        ports = [first, *itertools.islice(_ports, count - 1)]
        try:
            with ExitStack() as stack:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        if ports[-1] == first + count - 1:
            return first
    raise AssertionError("no ports left")
