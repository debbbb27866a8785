"""The floor: an ext_proc server that only answers, one fixed pick for everybody.

`python -m epp.lab.bench.bare grpcio [HOST:PORT]`: two messages in and two out on grpc.aio, messages
decoded and answers made, nothing decided. `builtin` is its twin on the picker's own transport
(docs/transport.md), so that the cost of deciding can be told from what that transport saves. Both on
uvloop. The pick is the address given, or one that nobody has. Prints its own address; ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import grpc
import uvloop

from epp.lab.bench.answering import Answering
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.server.rpc_server import RpcServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Transport = Literal["grpcio", "builtin"]
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
#: Picked where no address is given.
NOBODY = "10.0.0.1:8000"
_HEADER = "x-gateway-destination-endpoint"
_MAX_BYTES = 64 * 1024 * 1024


def answer(message: ProcessingRequest, destination: str) -> ProcessingResponse:
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
    option.header.key, option.header.raw_value = _HEADER, destination.encode()
    lb = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    lb.fields[_HEADER].string_value = destination
    return reply


def _process(destination: str) -> Any:
    async def process(_: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(answer(message, destination))

    return process


@asynccontextmanager
async def _grpcio(destination: str) -> AsyncIterator[str]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    method = grpc.stream_stream_rpc_method_handler(
        _process(destination),
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@asynccontextmanager
async def _builtin(destination: str) -> AsyncIterator[str]:
    pick = partial(answer, destination=destination)
    server = RpcServer(
        {f"/{SERVICE}/Process": lambda call: Answering(call, pick)},
        max_receive_bytes=_MAX_BYTES,
        max_send_bytes=_MAX_BYTES,
    )
    yield await server.start("127.0.0.1:0")
    await server.stop(0)


async def _serve(transport: str, destination: str = NOBODY) -> None:
    serve = _builtin if transport == "builtin" else _grpcio
    async with serve(destination) as address:
        print(address, flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        await ended.wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
