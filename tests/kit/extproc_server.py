"""A throw-away ext_proc server, written against `envoy-data-plane` alone: an independent speaker of the protocol.

It answers every request with one destination, in whatever body modes Envoy says it uses.
"""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1._async import HealthServicer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.ext_proc import v3 as ep
    from envoy_data_plane.google import protobuf

from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_DESTINATION = "x-gateway-destination-endpoint"
_PIECE_BYTES = 62_000
_KEEPALIVE_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Envoy pings often, to notice a frozen picker; gRPC's defaults take that for abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)


@dataclass
class ExtProcServer:
    """Answers with `destination`; an empty one answers without a pick.

    Attributes:
        destination: what to answer, an address or a comma list.
        tells: where the answer stands.
        leaves: end each stream with status OK and without an answer.
        going: cleared, nothing is answered until it is set again.
        relays: relays to go through, as the picker names them in its metadata.
        sets: further request headers that it sets with a pick.
        port: where it listens, once started; set it before to listen there again.
        headers: request headers of every exchange, in order.
        body_bytes: request body length of every exchange, in order.
        served: the served-endpoint feedback of response messages.
    """

    destination: str = ""
    tells: tuple[str, ...] = ("header", "metadata")
    leaves: bool = False
    going: asyncio.Event = field(default_factory=asyncio.Event)
    relays: str = ""
    sets: dict[str, str] = field(default_factory=dict)
    port: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)
    served: list[object] = field(default_factory=list)
    _server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.going.set()
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ep.ProcessingRequest.parse,
            response_serializer=bytes,
        )
        self._server = grpc.aio.server(options=_KEEPALIVE_OPTIONS)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {"Process": handler}),)
        )
        # The health checks of full duplex; grpc's own servicer answers SERVING for "".
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port or free_ports()}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _process(self, requests: AsyncIterator[Any], _: object) -> AsyncIterator[Any]:
        duplex, streams_back, whole, received = False, True, False, bytearray()
        async for request in requests:
            if (modes := request.protocol_config) is not None:
                duplex = modes.request_body_mode.name == "FULL_DUPLEX_STREAMED"
                whole = modes.request_body_mode.name == "BUFFERED"
                streams_back = modes.response_body_mode.name == "FULL_DUPLEX_STREAMED"
            if (message := request.request_headers) is not None:
                self.headers.append(_headers(message))
                await self.going.wait()
                if self.leaves:
                    return
                if message.end_of_stream:
                    self.body_bytes.append(0)
                    yield self._picked(in_headers=True)
                elif not duplex:
                    yield ep.ProcessingResponse(request_headers=ep.HeadersResponse())
            elif (body := request.request_body) is not None:
                received += body.body
                if not (body.end_of_stream or whole):  # trailers may follow a whole one
                    continue
                self.body_bytes.append(len(received))
                yield self._picked(in_headers=duplex)
                if duplex:
                    for piece in _streamed(bytes(received)):
                        yield ep.ProcessingResponse(request_body=piece)
            elif request.response_headers is not None:
                if request.metadata_context is not None:
                    self.served.append(request.metadata_context.to_dict())
                yield ep.ProcessingResponse(response_headers=ep.HeadersResponse())
            elif request.response_body is not None and not streams_back:
                yield ep.ProcessingResponse(response_body=ep.BodyResponse())
            elif (body := request.response_body) is not None:
                for piece in _streamed(body.body, last=body.end_of_stream):
                    yield ep.ProcessingResponse(response_body=piece)
            elif request.response_trailers is not None:
                yield ep.ProcessingResponse(response_trailers=ep.TrailersResponse())

    def _picked(self, *, in_headers: bool) -> Any:
        """The pick, in answer to the headers or, when buffered, to the body."""
        common, metadata = ep.CommonResponse(clear_route_cache=True), None
        if self.destination and "header" in self.tells:
            headers = {_DESTINATION: self.destination, **self.sets}
            common.header_mutation = ep.HeaderMutation(
                set_headers=[
                    core.HeaderValueOption(header=core.HeaderValue(key=name, raw_value=value.encode()))
                    for name, value in headers.items()
                ]
            )
        if self.destination and "metadata" in self.tells:
            metadata = _struct(
                {
                    "envoy.lb": {_DESTINATION: self.destination},
                    "epp": {"decision_id": "d-1", "relays": self.relays},
                }
            )
        if in_headers:
            answer = ep.HeadersResponse(response=common)
            return ep.ProcessingResponse(request_headers=answer, dynamic_metadata=metadata)
        return ep.ProcessingResponse(request_body=ep.BodyResponse(response=common), dynamic_metadata=metadata)


def _struct(values: dict[str, Any]) -> Any:
    return protobuf.Struct(
        fields={
            name: protobuf.Value(struct_value=_struct(value))
            if isinstance(value, dict)
            else protobuf.Value(string_value=value)
            for name, value in values.items()
        }
    )


def _headers(message: Any) -> dict[str, str]:
    return {h.key: h.value or h.raw_value.decode() for h in message.headers.headers}


def _streamed(body: bytes, *, last: bool = True) -> list[Any]:
    """Pieces that a streamed body answer consists of; an empty body is one empty piece."""
    parts = [body[i : i + _PIECE_BYTES] for i in range(0, len(body), _PIECE_BYTES)] or [b""]
    return [
        ep.BodyResponse(
            response=ep.CommonResponse(
                body_mutation=ep.BodyMutation(
                    streamed_response=ep.StreamedBodyResponse(
                        body=part, end_of_stream=last and i == len(parts) - 1
                    )
                )
            )
        )
        for i, part in enumerate(parts)
    ]
