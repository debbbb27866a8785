"""Listening sockets of all of the picker's listeners but grpcio's, which opens its own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from epp.config.address import UNIX, split_address
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNIX_MODE = 0o660
#: Connections that the system holds ready.
_BACKLOG = 1024
_FIXES = {
    errno.EADDRNOTAVAIL: "no address of this machine; 0.0.0.0 or [::] listens on all that it has",
    errno.ENOENT: "name a socket in a folder that is there",
    errno.EACCES: "ports below 1024 want rights that this process lacks; write a higher one",
}
_FIX = "is another picker running? stop it, or write another address"


@contextlib.contextmanager
def located(source: str, key: str, address: str) -> Iterator[None]:
    """Report what cannot be listened on by the file and key that say so.

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


def listening_sockets(address: str) -> list[socket.socket]:
    """A bound socket for each address of ``host:port``, on one port, or one for ``unix:/path``.

    A host's name may have two addresses, and ``::`` takes IPv4 as well, as gRPC's listeners do. A Unix socket
    is for this user and group; one that a dead process left there goes.

    Raises:
        OSError: one of them cannot be bound.
        ValueError: it is not an address.
    """
    opened: list[socket.socket] = []
    try:
        if address.startswith(UNIX):
            opened.append(_unix_socket(Path(address.removeprefix(UNIX))))
        else:
            _bind_all(*split_address(address), opened)
    except OSError as error:
        for bound in opened:
            bound.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return opened


def _bind_all(host: str, port: int, opened: list[socket.socket]) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, place in dict.fromkeys((family, place[:2]) for family, *_, place in found):
        chosen = opened[0].getsockname()[1] if opened else place[1]
        dual = host == "::" and family == socket.AF_INET6
        opened.append(
            socket.create_server((place[0], chosen), family=family, dualstack_ipv6=dual, backlog=_BACKLOG)
        )


def _unix_socket(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        bound.bind(str(path))
        path.chmod(_UNIX_MODE)  # before it listens: nobody has come yet
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
