"""One bare ext_proc server in its own process: ``python -m bench.transport_server ROW-AS-JSON ADDRESS``.

It answers the headers and the body of each request with fixed replies and does nothing else. It prints one
line: the port it listens on (0 for a Unix socket), or ``skip REASON``; it ends when its standard input does,
so that it never outlives the bench. ADDRESS is the path of a Unix socket or an empty string for loopback TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.transport_framing import Framing
from bench.transport_rows import Row
from epp.bench.answering import Answering
from epp.pb import ext_proc_pb2 as pb
from epp.server.rpc_server import RpcServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator


SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
DESTINATION = "10.0.0.1:8000"
_SYNC_THREADS = 64


def headers_reply() -> pb.ProcessingResponse:
    """The reply to request headers: go on."""
    reply = pb.ProcessingResponse()
    reply.request_headers.response.SetInParent()
    return reply


def body_reply() -> pb.ProcessingResponse:
    """The reply to the request body: the destination as a header and as dynamic metadata."""
    reply = pb.ProcessingResponse()
    common = reply.request_body.response
    common.clear_route_cache = True
    option = common.header_mutation.set_headers.add()
    option.header.key = DESTINATION_HEADER
    option.header.raw_value = DESTINATION.encode()
    namespace = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    namespace.fields[DESTINATION_HEADER].string_value = DESTINATION
    return reply


def protobuf_answer(message: pb.ProcessingRequest) -> pb.ProcessingResponse:
    """The reply to a decoded message; reads the body, as any picker does."""
    if message.WhichOneof("request") == "request_body":
        len(message.request_body.body)
        return body_reply()
    return headers_reply()


class _Raw:
    """Answers by position, first headers and then body, with bytes made once."""

    def __init__(self) -> None:
        self.replies = (headers_reply().SerializeToString(), body_reply().SerializeToString())


def _grpc_handler(row: Row) -> Any:
    """The stream handler of grpc.aio for a row."""
    raw = _Raw().replies

    async def read_write(_: object, context: Any) -> None:
        import grpc  # noqa: PLC0415  # after the process's environment and affinity are set

        place = 0
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(raw[place] if row.codec == "raw" else protobuf_answer(message))
            place += 1
            if place == 2 and row.handler == "close-after-pick":
                return

    async def generator(messages: AsyncIterator[Any], _: object) -> AsyncIterator[Any]:
        place = 0
        async for message in messages:
            yield raw[place] if row.codec == "raw" else protobuf_answer(message)
            place += 1

    return generator if row.handler == "generator" else read_write


def _generic_handler(row: Row, handler: Any) -> Any:
    """The handler under the service's name, with the row's codec."""
    import grpc  # noqa: PLC0415

    codec: dict[str, Callable[..., Any]] = {}
    if row.codec == "protobuf":
        codec = {
            "request_deserializer": pb.ProcessingRequest.FromString,
            "response_serializer": pb.ProcessingResponse.SerializeToString,
        }
    method = grpc.stream_stream_rpc_method_handler(handler, **codec)
    return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})


def _ready(row: Row, port: int) -> None:
    """Applies the row's garbage collector setting and tells the bench where the server listens."""
    gc.collect()
    if row.gc in ("freeze", "rare"):
        gc.freeze()
    if row.gc == "rare":
        gc.set_threshold(50_000, 50, 50)
    if row.gc == "off":
        gc.disable()
    print(port, flush=True)


async def _input_end() -> None:
    """Returns when standard input ends."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    await ended.wait()


def _grpc_address(address: str) -> str:
    return f"unix:{address}" if address else "127.0.0.1:0"


async def _serve_aio(row: Row, address: str) -> None:
    import grpc  # noqa: PLC0415

    server = grpc.aio.server(options=list(row.options))
    server.add_generic_rpc_handlers((_generic_handler(row, _grpc_handler(row)),))
    port = server.add_insecure_port(_grpc_address(address))
    await server.start()
    _ready(row, 0 if address else port)
    await _input_end()
    await server.stop(0)


async def _serve_grpclib(row: Row, address: str) -> None:
    from grpclib.const import Cardinality, Handler  # noqa: PLC0415
    from grpclib.exceptions import StreamTerminatedError  # noqa: PLC0415
    from grpclib.server import Server  # noqa: PLC0415

    async def process(stream: Any) -> None:
        with contextlib.suppress(StreamTerminatedError):
            async for message in stream:
                await stream.send_message(protobuf_answer(message))

    class Service:
        def __mapping__(self) -> dict[str, Any]:
            kinds = (Cardinality.STREAM_STREAM, pb.ProcessingRequest, pb.ProcessingResponse)
            return {f"/{SERVICE}/Process": Handler(process, *kinds)}

    server = Server([Service()])
    if address:
        await server.start(path=address)
        _ready(row, 0)
    else:
        # The protocol number matters: without it asyncio leaves Nagle's algorithm on, 40 ms for each reply.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        await server.start(sock=listener)
        _ready(row, listener.getsockname()[1])
    await _input_end()
    server.close()
    await server.wait_closed()


async def _serve_framing(row: Row, address: str) -> None:
    def answer(message: bytes) -> bytes:
        return protobuf_answer(pb.ProcessingRequest.FromString(message)).SerializeToString()

    loop = asyncio.get_running_loop()
    if address:
        server: asyncio.Server = await loop.create_unix_server(lambda: Framing(answer), address)
        _ready(row, 0)
    else:
        server = await loop.create_server(lambda: Framing(answer), "127.0.0.1", 0)
        _ready(row, server.sockets[0].getsockname()[1])
    await _input_end()
    server.close()


async def _serve_builtin(row: Row, address: str) -> None:
    if address:
        raise ImportError("no Unix sockets")
    methods = {f"/{SERVICE}/Process": lambda call, _: Answering(call, protobuf_answer)}
    server = RpcServer(methods, max_receive_bytes=64 << 20, max_send_bytes=64 << 20)
    bound = await server.start("127.0.0.1:0")
    _ready(row, int(bound.rpartition(":")[2]))
    await _input_end()
    await server.stop(0)


def _serve_sync(row: Row, address: str) -> None:
    import grpc  # noqa: PLC0415

    def process(messages: Iterable[Any], _: object) -> Iterator[Any]:
        return map(protobuf_answer, messages)

    server = grpc.server(ThreadPoolExecutor(_SYNC_THREADS), options=list(row.options))
    server.add_generic_rpc_handlers((_generic_handler(row, process),))
    port = server.add_insecure_port(_grpc_address(address))
    server.start()
    _ready(row, 0 if address else port)
    sys.stdin.read()
    server.stop(0).wait()


_COROUTINES: dict[str, Callable[[Row, str], Coroutine[Any, Any, None]]] = {
    "aio": _serve_aio,
    "grpclib": _serve_grpclib,
    "framing": _serve_framing,
    "builtin": _serve_builtin,
}


def main(arguments: list[str]) -> None:
    """Serves until standard input ends."""
    row, address = Row.from_json(arguments[0]), arguments[1]
    if row.pin:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        if row.server == "sync":
            _serve_sync(row, address)
            return
        serve = _COROUTINES[row.server](row, address)
        loop_factory = None
        if row.uvloop:
            import uvloop  # noqa: PLC0415

            loop_factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve)
    except ImportError as error:
        print(f"skip {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
