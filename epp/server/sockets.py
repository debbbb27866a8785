"""Listening sockets of all of the picker's listeners but grpcio's, which opens its own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from epp.config.address import UNIX, join_address
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNIX_MODE = 0o660
_FIXES = {
    errno.EADDRNOTAVAIL: "no address of this machine; 0.0.0.0 or [::] listens on all that it has",
    errno.ENOENT: "name a socket in a folder that is there",
    errno.EACCES: "ports below 1024 want rights that this process lacks; write a higher one",
}
_FIX = "is another picker running? stop it, or write another address"


@contextlib.contextmanager
def told_of(source: str, key: str, address: str) -> Iterator[None]:
    """Has what cannot be listened on told by the file and key that say so.

    Args:
        source: name of the configuration file.
        key: its key, e.g. ``listen.grpc``.
        address: what the key says.

    Raises:
        ConfigError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        first = error.__cause__ if isinstance(error.__cause__, OSError) else error
        # Of what the system refuses its own words; a resolver's numbers are negative, and grpc has none.
        number = first.errno or 0
        why = os.strerror(number) if number > 0 else first.strerror or str(first)
        fix = _FIXES.get(number, _FIX)
        raise ConfigError(source, key, f"cannot listen on {address}: {why}", fix) from error


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket; ``::`` takes IPv4 as well, as gRPC's listeners do.

    Raises:
        OSError: the address cannot be bound.
    """
    return _listening(host, port, at_most=1, backlog=128)[0]


def listening_sockets(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """A socket for each address of a name, on one port: ``localhost`` may be two.

    Raises:
        OSError: one of them cannot be bound.
    """
    return _listening(host, port, at_most=None, backlog=backlog)


def unix_socket(path: str, *, backlog: int) -> socket.socket:
    """A Unix socket for this user and group; a socket that a dead process left there goes.

    Raises:
        OSError: the path cannot be bound.
    """
    bound = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(Path(path).stat().st_mode):
                Path(path).unlink()
        bound.bind(path)
        Path(path).chmod(_UNIX_MODE)  # before it listens: nobody has come yet
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {UNIX}{path}: {error}") from error
    return bound


def _listening(host: str, port: int, *, at_most: int | None, backlog: int) -> list[socket.socket]:
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, address[:2]) for family, *_, address in found))
        for family, address in addresses[:at_most]:
            dual = host == "::" and family == socket.AF_INET6
            chosen = opened[0].getsockname()[1] if opened else address[1]
            opened.append(
                socket.create_server(
                    (address[0], chosen), family=family, dualstack_ipv6=dual, backlog=backlog
                )
            )
    except OSError as error:
        for bound in opened:
            bound.close()
        raise OSError(
            error.errno, f"cannot listen on {join_address(host, port)}: {error.strerror}"
        ) from error
    return opened
