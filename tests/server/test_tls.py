"""What the listeners present: certificates from files, their reload, and one of our own."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from epp.config.listen import ServerTls
from epp.errors import ConfigError
from epp.server.tls import GRPC_SECTION, Certificates, Pair, self_signed
from tests.kit import certificates
from tests.kit.apps import app_of
from tests.kit.logs import own_lines
from tests.kit.transports import BOTH

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 8, 1, tzinfo=dt.UTC)


def write_pair(folder: Path, name: str) -> None:
    certificates.self_signed(folder / "tls.crt", folder / "tls.key", name)


FILES = ServerTls(cert_file="tls.crt", key_file="tls.key")


def test_a_replaced_pair_is_taken_and_half_of_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    first, second = self_signed(NOW), self_signed(NOW)
    pair = Pair(first, None)
    for half in ((second[0], first[1]), (None, first[1])):
        pair.take(half)
        assert pair.pem == first
    assert len(own_lines(caplog, logging.ERROR)) == 2
    pair.take(second)
    assert pair.pem == second


def test_halves_of_two_pairs_are_refused_at_start(tmp_path: Path) -> None:
    write_pair(tmp_path, "x")
    (tmp_path / "tls.key").write_bytes(self_signed(NOW)[0])
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        Certificates(tmp_path, "epp.yaml").credentials(FILES)


async def presented(address: str) -> str:
    """Subject of the certificate that a listener presents."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=certificates.trusting())
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).subject.rfc4514_string()


@pytest.mark.parametrize("transport", BOTH)
async def test_every_listener_of_a_picker_presents_a_new_pair_and_keeps_the_last_good_one(
    tmp_path: Path, transport: str
) -> None:
    tls = {"cert_file": "tls.crt", "key_file": "tls.key"}
    listen: dict[str, object] = dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0")
    listen["transport"] = transport
    listen |= dict.fromkeys(("tls", "http_tls", "first_token_tls"), tls)
    write_pair(tmp_path, "first")
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    app = app_of(tmp_path, listen=listen)
    await app.start()
    addresses = [address for address in app.addresses.values() if address]

    async def all_present(name: str) -> None:
        async with asyncio.timeout(240):
            for address in addresses:
                while await presented(address) != name:
                    await asyncio.sleep(0.05)

    try:
        await all_present("CN=first")
        write_pair(tmp_path, "second")
        await all_present("CN=second")
        (tmp_path / "tls.key").write_bytes(b"broken")
        for file in app._tls.watched:
            file.check()
        await all_present("CN=second")
        write_pair(tmp_path, "third")
        await all_present("CN=third")
    finally:
        await app.stop(0.0)


def test_a_client_ca_that_is_none_is_told_by_its_key(tmp_path: Path) -> None:
    write_pair(tmp_path, "x")
    (tmp_path / "ca.crt").write_text("no certificates")
    mutual = ServerTls(cert_file="tls.crt", key_file="tls.key", client_ca_file="ca.crt")
    with pytest.raises(ConfigError, match="client_ca_file"):
        Certificates(tmp_path, "epp.yaml").context(mutual, GRPC_SECTION)
