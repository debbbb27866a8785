"""The endpoint picker protocol's cases through a real Envoy, full duplex both ways, over TLS.

Each test names the section of proposal 004 (or of llm-d's behaviour) that it checks. The gateway's hint comes from
a filter before the picker's, as gateways' own filters give it.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epp.config.pool import dump_pool
from epp.envoy import filters
from epp.envoy import messages as api
from epp.envoy.settings import TlsFiles, Variant
from tests.kit.certificates import self_signed
from tests.kit.envoy import require_envoy, require_version
from tests.kit.modes import TwoEngines
from tests.kit.picker import CONFIG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
HINTS = "envoy.lb.subset_hint"
REASON = "x-llm-d-request-dropped-reason"
NO_CANDIDATES = (
    "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request"
)

#: `x-hint` becomes the gateway's hint: entries with semicolons between a list, after `text:` a text.
HINT_FILTER = """
function envoy_on_request(handle)
  local hint = handle:headers():get("x-hint")
  if hint == nil then return end
  handle:headers():remove("x-hint")
  local value = string.match(hint, "^text:(.*)$")
  if value == nil then
    value = {}
    for entry in string.gmatch(hint, "[^;]+") do table.insert(value, entry) end
  end
  handle:streamInfo():dynamicMetadata():set(
    "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
end
"""


def hinting(patch: pytest.MonkeyPatch) -> None:
    """Make Envoys of this module tell hints, and the picker what they tell."""
    plain, all_filters = filters.external_processor, filters.http_filters

    def external_processor(settings: Any) -> Any:
        processor: Any = plain(settings)
        processor.metadata_options.forwarding_namespaces.untyped.append(HINTS)
        return processor

    def http_filters(*arguments: Any) -> list[Any]:
        return [api.lua_filter("hint", HINT_FILTER, "hint"), *all_filters(*arguments)]

    patch.setattr(filters, "external_processor", external_processor)
    patch.setattr("epp.envoy.listener.http_filters", http_filters)


class Gateway(TwoEngines):
    """Envoy, the picker in llm-d's words and two upstreams."""

    async def ask(self, body: object = CHAT, *, path: str = "/v1/chat/completions", **headers: str) -> Any:
        """Status, headers and text of an answer; ``body`` None for GET."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is None:
            asking = self.http.get(self.url + path, headers=names)
        else:
            names["content-type"] = "application/json"
            asking = self.http.post(self.url + path, data=io.BytesIO(data), headers=names)
        async with asking as answer:
            return answer.status, answer.headers, await answer.text()

    async def served(self, body: object = CHAT, **more: str) -> str:
        """Who served a request."""
        status, _, text = await self.ask(body, **more)
        assert status == 200, text
        address: str = json.loads(text)["served"]
        return address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    require_envoy()
    folder: Path = tmp_path_factory.mktemp("protocol")
    self_signed(folder / "cert.pem", folder / "key.pem", "picker")
    listen = {**CONFIG["listen"], "tls": {"cert_file": "cert.pem", "key_file": "key.pem"}}
    envoy = {
        "variant": Variant.FULL_DUPLEX,
        "picker_tls": TlsFiles(ca_file=str(folder / "cert.pem")),
        # Envoy passes a picker by that misses one health check, which a busy machine's may.
        "picker_keepalive_s": 10.0,
    }
    protocol = {"errors": "llm-d", "conformance": True, "emit_scores": True}
    with pytest.MonkeyPatch.context() as patch:
        hinting(patch)
        async with Gateway(folder, envoy=envoy, listen=listen, protocol=protocol) as made:
            # Until its health check has seen the picker, Envoy balances by itself.
            while not await made.picker.metric("epp_decisions_total", basis="policy"):
                await made.ask()
            yield made


async def test_the_destination_is_told_and_obeyed(gateway: Gateway) -> None:
    """Response direction: the destination as header and metadata, the fallbacks after it."""
    for _ in range(4):
        served = await gateway.served()
        assert served == await gateway.picked()
        told = gateway.got[-1].headers["x-gateway-destination-endpoint"].split(",")
        assert told[0] == served
        assert set(told) == set(gateway.addresses)


@pytest.mark.parametrize("body", [CHAT, None], ids=["chat", "no-body"])
@pytest.mark.parametrize("form", ["text: 10.9.9.9:1, {}", "10.9.9.9;{}"])
async def test_the_gateways_subset_is_kept_to(gateway: Gateway, body: object, form: str) -> None:
    """Request direction, subset hint: list, text, with a body and without."""
    for address in gateway.addresses:
        assert await gateway.served(body, x_hint=form.format(address)) == address
    host = gateway.addresses[0].partition(":")[0]
    assert await gateway.served(body, x_hint=host) in gateway.addresses, "an IP alone is all ports of it"


@pytest.mark.parametrize("body", [CHAT, None], ids=["chat", "no-body"])
@pytest.mark.parametrize("hint", ["text:", "10.9.9.9:1", "127.0.0.1:1"], ids=["empty", "elsewhere", "port"])
async def test_a_subset_without_endpoints_is_503(gateway: Gateway, body: object, hint: str) -> None:
    """Request direction, subset hint: nothing eligible means 503; errors, the reason of a drop."""
    status, headers, text = await gateway.ask(body, x_hint=hint)
    assert (status, headers[REASON]) == (503, "rejected-no-endpoints")
    assert text.startswith(NO_CANDIDATES)


@pytest.mark.parametrize("body", [b"{", b'{"model": "m"}'])
async def test_what_a_client_gets_wrong_is_400(gateway: Gateway, body: bytes) -> None:
    """Errors: immediate responses in plain text, in llm-d's words."""
    status, headers, text = await gateway.ask(body)
    assert (status, headers["content-type"]) == (400, "text/plain")
    assert text.startswith("inference error: BadRequest - ")
    assert REASON not in headers


async def test_the_suite_steers_through_envoy(gateway: Gateway) -> None:
    """Conformance: the steering header, in its order."""
    for address in gateway.addresses:
        assert await gateway.served(test_epp_endpoint_selection=f"10.9.9.9:1, {address}") == address


async def test_who_served_is_told_back(gateway: Gateway) -> None:
    """Served feedback, and conformance's response header made from it."""
    await require_version(1, 38, "who served, as metadata,")
    for address in gateway.addresses:
        _, headers, _ = await gateway.ask(test_epp_endpoint_selection=address)
        assert headers["x-conformance-test-served-endpoint"] == address


async def test_an_empty_pool_is_503_with_a_body_and_without(gateway: Gateway) -> None:
    """Errors: 503 where nobody is ready (llm-d: 500 where there is no body)."""
    pool, ready = gateway.folder / "endpoints.yaml", "llm_d_epp_ready_endpoints"
    full = pool.read_bytes()
    pool.write_bytes(dump_pool([]))
    try:
        await gateway.picker.until_metric(ready, lambda count: count == 0)
        for body in (CHAT, None):
            status, headers, text = await gateway.ask(body)
            assert (status, headers[REASON]) == (503, "rejected-no-endpoints")
            assert text.startswith(NO_CANDIDATES)
    finally:
        pool.write_bytes(full)
        # Envoy has them again once it has followed the picker's file.
        while {(await gateway.ask(x_hint=address))[0] for address in gateway.addresses} != {200}:
            await asyncio.sleep(0.05)
