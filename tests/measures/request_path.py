"""Profile one buffered chat through a picker without its transport: files, calls, hops, value types.

A call is a Python frame of a function of ours, a hop a call from one of our files into another; a value
type is a dataclass or struct of which the request makes an instance. The warm-up requests before it are not
counted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.pb.processing_mode_pb2 import ProcessingMode
from epp_lab.bench.rig import HEADERS, rig

if TYPE_CHECKING:
    from types import FrameType

    from epp.server.app import App

_PACKAGE = str(Path(__file__).parents[2] / "epp")


@dataclass
class RequestPath:
    """Counts of one request.

    Attributes:
        files: those with a function that was called.
        calls: frames of our functions.
        hops: of them those called from another of our files.
        value_types: names of the types that it made instances of.
    """

    files: set[str] = field(default_factory=set)
    calls: int = 0
    hops: int = 0
    value_types: set[str] = field(default_factory=set)
    _known: dict[int, Any] = field(default_factory=dict)

    def event(self, frame: FrameType, kind: str, value: object) -> None:
        """Take an event of `sys.setprofile`."""
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or file == __file__:
            return
        if kind == "return":
            self._seen(value)
        elif kind == "call":
            self.calls += 1
            self.files.add(file)
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            self.hops += caller.startswith(_PACKAGE) and caller != file
            for argument in frame.f_locals.values():
                self._seen(argument)

    def counted_from_here(self) -> None:
        """Forget the counts of the warm-up; values that it met are no request's own."""
        self.calls = self.hops = 0
        self.files.clear()
        self.value_types.clear()

    def _seen(self, value: object) -> None:
        kind = type(value)
        ours = kind.__module__.startswith("epp.") and not kind.__module__.startswith("epp.pb")
        if ours and (dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")):
            if id(value) not in self._known:
                self.value_types.add(kind.__name__)
            self._known[id(value)] = value


def request_path() -> RequestPath:
    """Count the shortest of six requests: by its id one of five takes a branch more."""
    return min((asyncio.run(_run()) for _ in range(6)), key=lambda path: path.calls)


async def _run() -> RequestPath:
    path = RequestPath()
    with rig(3) as app:
        for number in range(3):
            _ask(app, number)
        sys.setprofile(path.event)
        _ask(app, 3)
        path.counted_from_here()
        _ask(app, 4)
        sys.setprofile(None)
    return path


def _ask(app: App, number: int) -> None:
    head, body = ProcessingRequest(), ProcessingRequest()
    head.protocol_config.request_body_mode = ProcessingMode.BUFFERED
    for name in (":path", ":method", ":authority", "content-type"):
        header = head.request_headers.headers.headers.add()
        header.key, header.raw_value = name, HEADERS[name].encode()
    chat = {"model": "m", "messages": [{"role": "user", "content": f"question {number} " * 200}]}
    body.request_body.body, body.request_body.end_of_stream = json.dumps(chat).encode(), True
    server = app._grpc  # the server without its sockets
    exchange = server._new_exchange(server._grpcio_share)
    for message in (head, body):
        exchange.take(ProcessingRequest.FromString(message.SerializeToString()))
    exchange.closed(cut=False)
