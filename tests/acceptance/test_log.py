"""The picker's log under peers that break the rules."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tests.acceptance.kit import Stack

if TYPE_CHECKING:
    from pathlib import Path


def test_a_peer_that_breaks_the_rules_again_and_again_takes_one_line_in_seconds(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.write("endpoints.yaml", {"endpoints": [{"address": "127.0.0.1:1"}]})
        stack.start_picker()
        host, _, port = stack.addresses["grpc"].rpartition(":")
        begun_s = time.monotonic()
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=240) as peer:
                peer.sendall(b"this is not HTTP/2, and never was\r\n\r\n")
                while peer.recv(4096):
                    pass
        assert 1 <= stack.picker.log().count("a connection from") <= 2 + (time.monotonic() - begun_s) / 5.0
