"""The floor: an ext_proc server that only answers, one fixed answer for everybody.

`python -m epp_lab.bench.bare TRANSPORT`: on ``grpcio`` or on ``builtin``, the own transport
(docs/transport.md), so that the cost of deciding can be told from what that transport saves. Prints its own
address.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.rpc.handlers import Handler
from epp.rpc.http2.status import Status
from epp.rpc.server import RpcServer

if TYPE_CHECKING:
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
#: Picked for everybody; it does not exist.
NOBODY = "10.0.0.1:8000"
_HEADER = "x-gateway-destination-endpoint"
_MAX_BYTES = 64 * 1024 * 1024


def answer(message: ProcessingRequest) -> ProcessingResponse:
    """Make the reply: go on, and with the body (or a request that has none) the decision."""
    reply = ProcessingResponse()
    part = message.WhichOneof("request")
    if part == "request_body":
        common = reply.request_body.response
    elif message.request_headers.end_of_stream:
        common = reply.request_headers.response
    else:
        reply.request_headers.response.SetInParent()
        return reply
    common.clear_route_cache = True
    option = common.header_mutation.set_headers.add()
    option.header.key, option.header.raw_value = _HEADER, NOBODY.encode()
    reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[_HEADER].string_value = NOBODY
    return reply


class Answering(Handler):
    """A call on the picker's own transport, each message answered at once."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, message: Message) -> None:
        """Answer a message."""
        request = ProcessingRequest.FromString(message)  # type: ignore[arg-type]  # stubs know bytes alone
        self._call.send(answer(request).SerializeToString())

    def ended(self) -> None:
        """Finish the call: its caller has said all."""
        self._call.finish(Status.OK)


async def _grpcio() -> tuple[object, str]:
    async def process(_: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(answer(message))

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    method = grpc.stream_stream_rpc_method_handler(
        process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def _builtin() -> tuple[object, str]:
    server = RpcServer(
        {f"/{SERVICE}/Process": Answering}, max_receive_bytes=_MAX_BYTES, max_send_bytes=_MAX_BYTES
    )
    return server, await server.start("127.0.0.1:0")


async def _serve(transport: str) -> None:
    _server, address = await (_builtin if transport == "builtin" else _grpcio)()
    print(address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
