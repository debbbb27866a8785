"""A real Envoy tells first tokens over a Unix socket and over mTLS, and nobody else is listened to."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import stat
from typing import TYPE_CHECKING

import pytest

from epp.config.load import parse_config
from epp.envoy.command import settings_from_config
from epp.envoy.settings import TlsFiles
from epp.errors import ConfigError
from epp.request.first_token import FirstTokenReceiver
from epp.types import Endpoint
from tests.kit.certificates import self_signed
from tests.kit.ports import free_ports
from tests.observe import answers
from tests.observe.conftest import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.observe.conftest import Rig

pytestmark = pytest.mark.envoy


async def told_while_it_runs(rig: Rig) -> None:
    """The first token is told before the answer ends."""
    ends = asyncio.Event()

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        await writer.drain()
        await ends.wait()
        writer.write(answers.chunk(answers.usage() + answers.DONE) + answers.chunk(b""))

    rig.plays(play)
    async with rig.client() as client:
        await client.read_head()
        await rig.told.until(lambda: rig.told.first_tokens)
        assert not rig.told.reports
        ends.set()
        assert b"[DONE]" in await client.body()
    assert rig.told.first_tokens == rig.picker.ids


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "first-token.sock"
    async with running(first_token_path=str(path), first_token_port=0) as rig:
        receiver = FirstTokenReceiver(rig.told)
        assert receiver.listen(f"unix:{path}") == f"unix:{path}"
        try:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            await told_while_it_runs(rig)
        finally:
            await receiver.stop()


async def test_over_mtls_and_for_nobody_without_a_certificate(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl, which is not installed")
    cert, key = self_signed(tmp_path / "cert.pem", tmp_path / "key.pem", "picker")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cert))
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    files = TlsFiles(ca_file=str(cert), cert_file=str(cert), key_file=str(key))
    port = free_ports()  # Envoy connects for the first call only, so the listener may come after it
    async with running(first_token_port=port, first_token_tls=files) as rig:
        receiver = FirstTokenReceiver(rig.told)
        assert receiver.listen(f"127.0.0.1:{port}", context) == f"127.0.0.1:{port}"
        try:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await _without_certificate(port, cert)
            assert receiver.received == 0
            await told_while_it_runs(rig)
        finally:
            await receiver.stop()


async def _without_certificate(port: int, cert: Path) -> None:
    context = ssl.create_default_context(cafile=str(cert))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"POST /first-token/guess HTTP/1.1\r\nhost: picker\r\n\r\n")
        await reader.readexactly(1)
    finally:
        writer.transport.abort()


def test_the_configuration_says_how_envoy_reaches_the_listener() -> None:
    pool = (Endpoint("10.0.0.1:8000"),)
    by_socket = settings_from_config(
        parse_config("listen: {first_token: 'unix:/run/epp/first.sock'}", "epp.yaml"), pool
    )
    assert (by_socket.first_token_path, by_socket.first_token_port) == ("/run/epp/first.sock", 0)
    assert by_socket.reports_first_tokens
    assert by_socket.first_token_tls is None
    tls = "listen: {first_token_tls: {cert_file: c.pem, key_file: k.pem, client_ca_file: ca.pem}}"
    by_tls = settings_from_config(parse_config(tls, "epp.yaml"), pool)
    assert by_tls.first_token_tls == TlsFiles(ca_file="c.pem")
    assert (by_tls.picker_tls, by_tls.first_token_port) == (None, 9003)
    nobody = settings_from_config(parse_config("listen: {first_token: ''}", "epp.yaml"), pool)
    assert not nobody.reports_first_tokens
    with pytest.raises(ConfigError, match="first_token"):
        parse_config("listen: {first_token: 'unix:'}", "epp.yaml")
