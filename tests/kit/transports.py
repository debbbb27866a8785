"""The picker's gRPC listeners by name, for tests that hold on both, and which one other tests run on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from epp.request.ext_proc import PROCESS
from epp.rpc.grpcio_server import GrpcioServer
from epp.rpc.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.rpc.handlers import Serve

BUILTIN, GRPCIO = "builtin", "grpcio"
BOTH = (BUILTIN, GRPCIO)
#: For a whole run on one transport, e.g. ``EPP_TEST_TRANSPORT=grpcio pytest tests/e2e``; "" is the default's.
CHOSEN = os.environ.get("EPP_TEST_TRANSPORT", "")
LONGEST_BYTES = 4 * 1024 * 1024


def listener(
    transport: str, methods: Mapping[str, Serve], *, single: bool = False
) -> RpcServer | GrpcioServer:
    """A plaintext listener that takes messages of `LONGEST_BYTES`; ``single`` is grpcio's."""
    if transport == BUILTIN:
        return RpcServer(methods, max_receive_bytes=LONGEST_BYTES, max_send_bytes=LONGEST_BYTES)
    paths = {PROCESS} if single else set[str]()
    return GrpcioServer(methods, max_receive_bytes=LONGEST_BYTES, max_send_bytes=LONGEST_BYTES, single=paths)
