"""Credentials with which endpoints and relays are asked: TLS and bearer tokens."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

from epp.server.files import POLL_S, read_file
from epp.threads import in_daemon_thread

#: Longest time that the first probe waits for its token.
_FIRST_READ_S = 1.0


def client_tls(ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """What a connection is opened with; reads files, so it may block.

    Args:
        ca_file: who signs certificates of the other side, the system's CAs when empty.
        cert_file: certificate to show, none when empty.
        key_file: its private key.

    Raises:
        ValueError: a file cannot be used; names it, which the errors of the ssl module do not.
    """
    named = f"ca_file {ca_file}"
    try:
        for file in filter(None, (ca_file, cert_file, key_file)):
            read_file(Path(file))  # refuses a FIFO, which the ssl module would wait for
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            named = f"cert_file {cert_file} with key_file {key_file}"
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error
    return context


class TokenFile:
    """A bearer token in a file that may be replaced: mounted secrets rotate."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._headers: dict[str, str] = {}
        self._problem = f"{path} has not been read yet"
        self._read = asyncio.Event()

    def headers(self) -> dict[str, str]:
        """Authorization header for the token last read.

        Raises:
            OSError: the file cannot be read.
        """
        if self._problem:
            raise OSError(self._problem)
        return self._headers

    async def first_read(self) -> None:
        """Wait until the file has been read, but not for long: a file system may hang."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._read.wait(), _FIRST_READ_S)

    async def follow(self, poll_s: float = POLL_S) -> None:
        """Read the file for ever."""
        while True:
            try:
                content = await in_daemon_thread(read_file, self._path)
                self._problem = "" if content is not None else f"{self._path} does not exist"
                self._headers = {"authorization": f"Bearer {(content or b'').decode().strip()}"}
            except (OSError, ValueError) as error:
                self._problem = f"{self._path}: {error}"
            self._read.set()
            await asyncio.sleep(poll_s)
