"""The floor: an ext_proc server that only answers, `python -m epp.bench.bare`, one fixed pick for everybody.

Two messages in and two out on grpc.aio and uvloop, as the picker's own transport (docs/transport.md):
messages decoded and answers made, nothing decided. Prints its address; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_HEADER, _DESTINATION = "x-gateway-destination-endpoint", "10.0.0.1:8000"


def answer(message: ProcessingRequest) -> ProcessingResponse:
    """The reply to a message: go on, and with the body (or a request that has none) the pick."""
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
    option.header.key, option.header.raw_value = _HEADER, _DESTINATION.encode()
    lb = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    lb.fields[_HEADER].string_value = _DESTINATION
    return reply


async def _process(_: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(answer(message))


async def _serve() -> None:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    method = grpc.stream_stream_rpc_method_handler(
        _process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(_serve())
