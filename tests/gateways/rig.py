"""The gateways with what is expected of each, and one's Envoy before the real picker and two upstreams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

from epp.envoy.settings import TlsFiles, Variant
from tests.gateways import shapes
from tests.kit.modes import TwoEngines
from tests.kit.picker import CONFIG
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.envoy.settings import EnvoySettings

BODY = json.dumps(chat_body("hello")).encode()
DESTINATION = "x-gateway-destination-endpoint"


@dataclass(frozen=True)
class Gateway:
    """What a gateway does.

    Attributes:
        shape: its part of Envoy's configuration.
        reads: where it looks for the endpoint.
        known_hosts: whether it knows the pool: it tries a list of endpoints in turn, and without one balances by
            itself. Else a list and nothing are 503, and any address will do.
        opens: whether it goes on without a picker.
        duplex: whether bodies stream through the picker, both ways.
        answers_pass: whether the picker sees answers.
        tls: whether the tests' picker speaks TLS.
        hints: whether it forwards a subset hint of its own.
        tells_served: whether it tells the picker who served.
        retries: whether it takes the next endpoint of a list when one is dead.
    """

    shape: Callable[[EnvoySettings], shapes.Shape]
    reads: str
    known_hosts: bool
    opens: bool
    duplex: bool = True
    answers_pass: bool = True
    tls: bool = True
    hints: bool = False
    tells_served: bool = False
    retries: bool = False

    @property
    def alone(self) -> int:
        """Status without a picker, where nothing of the request was sent to it."""
        return self.without_a_pick if self.opens else 500

    @property
    def without_a_pick(self) -> int:
        """Status when the filter lets a request go on."""
        return 200 if self.known_hosts else 503


_ISTIO: dict[str, Any] = {"reads": "metadata", "known_hosts": True, "tells_served": True, "retries": True}
_BY_ADDRESS: dict[str, Any] = {"reads": "header", "known_hosts": False}
_EG: dict[str, Any] = {"reads": "header", "known_hosts": True, "hints": True, "tls": False}
GATEWAYS = {
    "istio-open": Gateway(partial(shapes.istio, fails_open=True), opens=True, tls=False, **_ISTIO),
    "istio-closed": Gateway(shapes.istio, opens=False, **_ISTIO),
    "ai-duplex": Gateway(shapes.ai_gateway, opens=False, **_BY_ADDRESS),
    "ai-buffered": Gateway(
        partial(shapes.ai_gateway, buffered=True), opens=False, duplex=False, **_BY_ADDRESS
    ),
    "llm-d-sidecar": Gateway(shapes.llm_d, opens=False, **_BY_ADDRESS),
    "llm-d-service": Gateway(partial(shapes.llm_d, service=True), opens=True, tls=False, **_BY_ADDRESS),
    "envoy-gateway": Gateway(shapes.envoy_gateway, opens=False, **_EG),
    "envoy-gateway-buffered": Gateway(
        partial(shapes.envoy_gateway, buffered=True), opens=True, duplex=False, answers_pass=False, **_EG
    ),
}


def as_written(gateway: Gateway, **options: Any) -> Any:
    """Make Envoys that start meanwhile this gateway's; a context manager. ``options`` are of `shapes.bootstrap`."""
    return mock.patch("epp.envoy.process.render", shapes.renderer(gateway.shape, **options))


class Rig(TwoEngines):
    """A gateway's Envoy, the picker and two upstreams.

    Args:
        folder: holds everything on disk.
        gateway: which.
    """

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self.gateway = gateway
        super().__init__(
            folder,
            variant=Variant.FULL_DUPLEX,
            policy={"fallbacks": 0},
            protocol={"conformance": True},
            listen={**CONFIG["listen"], "tls": {"self_signed": True} if gateway.tls else None},
            envoy={"picker_tls": TlsFiles() if gateway.tls else None},
        )

    async def __aenter__(self) -> Self:
        with as_written(self.gateway):
            return await super().__aenter__()

    async def ask(self, body: bytes | None = BODY, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and decoded answer; ``body`` None for GET."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        method, path = ("GET", "/v1/models") if body is None else ("POST", CHAT)
        if body is not None:
            names["content-type"] = "application/json"
        async with self.http.request(method, self.url + path, data=body, headers=names) as answer:
            raw = await answer.read()
            told = json.loads(raw) if answer.content_type == "application/json" else raw.decode()
            return answer.status, dict(answer.headers), told

    async def status(self, body: bytes | None = BODY, **headers: str) -> int:
        """Status of an answer."""
        return (await self.ask(body, **headers))[0]

    async def sent(self) -> int:
        """How many messages Envoy has sent the picker."""
        name = "http.requests.ext_proc.stream_msgs_sent"
        return (await self.envoy.stats(name)).get(name, 0)

    async def until_back(self) -> None:
        """Ask until the picker decides again after a restart."""
        while not await self.picker.metric("epp_decisions_total", basis="policy"):
            await self.ask()
