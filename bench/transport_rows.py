"""The rows of the transport bench: which bare ext_proc servers are measured, and how each is set up.

Owns the list of rows and nothing else: no process, no socket. A row is sent to its server process as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

Server = Literal["aio", "grpclib", "sync", "framing", "builtin", "none"]
Handler = Literal["read-write", "generator", "close-after-pick"]
Codec = Literal["protobuf", "raw"]
Gc = Literal["default", "freeze", "rare", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One transport set up in one way.

    Attributes:
        name: short name, unique, for the table and for ``--rows``.
        group: ``base`` compares libraries, ``tuning`` compares settings of grpc.aio.
        note: what differs, for the table's legend.
        server: the library; ``framing`` is none at all, ``builtin`` the picker's own, ``none`` is Envoy
            without ext_proc.
        handler: shape of the handler; ``close-after-pick`` ends the stream after the second reply.
        codec: ``protobuf`` decodes each message and builds each reply; ``raw`` does neither.
        uvloop: whether the event loop is uvloop's.
        options: grpc channel arguments, name and value.
        env: environment variables of the server process.
        gc: ``freeze`` freezes the start-up heap, ``rare`` also raises the thresholds, ``off`` disables it.
        uds: a Unix socket instead of loopback TCP.
        pin: the server process is held on one core.
    """

    name: str
    group: Literal["base", "tuning"] = "base"
    note: str = ""
    server: Server = "aio"
    handler: Handler = "read-write"
    codec: Codec = "protobuf"
    uvloop: bool = False
    options: tuple[tuple[str, int | str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    gc: Gc = "default"
    uds: bool = False
    pin: bool = False

    def to_json(self) -> str:
        """The row as a JSON object."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Row:
        """The row that `to_json` wrote."""
        fields = json.loads(text)
        for pairs in ("options", "env"):
            fields[pairs] = tuple((name, value) for name, value in fields[pairs])
        return Row(**fields)


BASE: tuple[Row, ...] = (
    Row(name="aio", note="grpc.aio, read/write handler, asyncio's loop"),
    Row(name="aio-uvloop", uvloop=True, note="the same on uvloop"),
    Row(name="aio-raw-uvloop", uvloop=True, codec="raw", note="the same, no protobuf at all"),
    Row(name="grpclib", server="grpclib", note="grpclib, asyncio's loop"),
    Row(name="grpclib-uvloop", server="grpclib", uvloop=True, note="grpclib on uvloop"),
    Row(name="sync", server="sync", note="grpc's synchronous server, 64 threads"),
    Row(name="builtin", server="builtin", uvloop=True, note="the picker's own transport on uvloop"),
    Row(
        name="framing",
        server="framing",
        uvloop=True,
        note="HTTP/2 framing by hand on uvloop, protobuf: the floor",
    ),
    Row(
        name="no-ext-proc",
        server="none",
        note="Envoy's buffer filter in place of ext_proc",
    ),
)


# A row that differs from ``aio-uvloop`` in what it states.
_tuned = partial(Row, group="tuning", uvloop=True)

_WINDOWS: tuple[tuple[str, int | str], ...] = (
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
)
_MINIMAL: tuple[tuple[str, int | str], ...] = (("grpc.minimal_stack", 1),)
_NO_BDP: tuple[tuple[str, int | str], ...] = (("grpc.http2.bdp_probe", 0),)
_READ_CHUNKS: tuple[tuple[str, int | str], ...] = (
    ("grpc.experimental.tcp_read_chunk_size", 128 << 10),
    ("grpc.experimental.tcp_min_read_chunk_size", 64 << 10),
)
_QUIET: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_channelz", 0),
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
)

TUNING: tuple[Row, ...] = (
    _tuned(name="generator", note="async-generator handler", handler="generator"),
    _tuned(
        name="close-after-pick",
        note="the server ends the stream after its second reply",
        handler="close-after-pick",
    ),
    _tuned(name="windows", note="lookahead 4 MiB, frames up to 1 MiB", options=_WINDOWS),
    _tuned(name="no-bdp", note="bandwidth probe off", options=_NO_BDP),
    _tuned(name="windows-no-bdp", note="both of these", options=(*_WINDOWS, *_NO_BDP)),
    _tuned(name="minimal-stack", note="grpc.minimal_stack", options=_MINIMAL),
    _tuned(name="quiet", note="channelz and the compression filter off", options=_QUIET),
    _tuned(name="read-chunks", note="TCP reads of 64 KiB and more", options=_READ_CHUNKS),
    _tuned(name="reuseport-off", note="grpc.so_reuseport 0", options=(("grpc.so_reuseport", 0),)),
    _tuned(name="poll", note="GRPC_POLL_STRATEGY=poll", env=(("GRPC_POLL_STRATEGY", "poll"),)),
    _tuned(name="gc-freeze", note="gc.freeze() after start", gc="freeze"),
    _tuned(name="gc-rare", note="gc.freeze() and thresholds 50,000 / 50 / 50", gc="rare"),
    _tuned(name="gc-off", note="gc.disable(): the most that tuning it can give", gc="off"),
    _tuned(name="combined", note="minimal-stack, quiet and gc-rare", options=(*_MINIMAL, *_QUIET), gc="rare"),
    _tuned(name="malloc-arena", note="MALLOC_ARENA_MAX=1", env=(("MALLOC_ARENA_MAX", "1"),)),
    _tuned(name="pinned", note="server process held on one core", pin=True),
    _tuned(name="unix-socket", note="Unix socket instead of loopback TCP", uds=True),
)

ROWS: tuple[Row, ...] = BASE + TUNING


def select(names: str) -> tuple[Row, ...]:
    """The rows for ``--rows``: ``base``, ``tuning``, ``all`` or names joined by commas.

    ``tuning`` brings ``aio-uvloop``, which its rows differ from, as its first row.

    Raises:
        KeyError: a name that no row has.
    """
    by_name = {row.name: row for row in ROWS}
    groups = {"base": BASE, "tuning": (by_name["aio-uvloop"], *TUNING), "all": ROWS}
    if names in groups:
        return groups[names]
    return tuple(by_name[name] for name in names.split(","))
