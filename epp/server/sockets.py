"""Listening sockets of the HTTP side; gRPC opens its own."""

from __future__ import annotations

import socket

from epp.config.address import join_address


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket; ``::`` takes IPv4 as well, as gRPC's listeners do.

    Raises:
        OSError: the address cannot be bound.
    """
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        dual = host == "::" and family == socket.AF_INET6
        return socket.create_server(address[:2], family=family, dualstack_ipv6=dual, backlog=128)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {join_address(host, port)}: {error}") from error
