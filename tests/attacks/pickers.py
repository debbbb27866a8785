"""The pickers that are attacked: alone as `epp serve` runs it, or behind a real Envoy of one of four kinds."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import yaml

from epp.envoy.filters import EXT_PROC
from epp.envoy.render import render
from epp.envoy.settings import MESSAGE_TIMEOUT_MS, EnvoySettings, Variant
from epp.lab.bench.processes import picker, pool_of
from tests.attacks.rig import ATTACKER, CONFIG, OTHER, Probe, Rig
from tests.kit.picker import Serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ISTIO = "istio"
BEHIND = (*(variant.value for variant in Variant), ISTIO)
_TYPE = "type.googleapis.com/envoy.extensions.{}"


@contextmanager
def alone(*, tls: bool = False) -> Iterator[Rig]:
    """A picker with three endpoints that do not exist, a well-behaved stream from either address, /readyz."""
    config = {**CONFIG, "listen": {**CONFIG["listen"], "tls": {"self_signed": True} if tls else None}}
    flags = ["tls"] if tls else []
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name, picker(pool_of(3), **config) as server:
        folder = Path(name)
        probes = [
            Probe(folder, "same", "pick", server.grpc, ATTACKER, *flags),
            Probe(folder, "other", "pick", server.grpc, OTHER, *flags),
            Probe(folder, "ready", "ready", server.http, ATTACKER),
        ]
        with Rig(server.pid, server.grpc, probes, tls=tls) as rig:
            yield rig


@asynccontextmanager
async def gateway(kind: str, folder: Path) -> AsyncIterator[Serving]:
    """Three simulated replicas, a picker, and an Envoy of a kind out of `BEHIND`, with our usual timeout."""
    variant = Variant.FULL_DUPLEX if kind == ISTIO else Variant(kind)
    envoy = {"message_timeout_ms": MESSAGE_TIMEOUT_MS}
    # An ORIGINAL_DST cluster takes a single endpoint.
    policy = {"fallbacks": 0} if variant is Variant.ORIGINAL_DST else {}
    rendered: Any = patch("epp.envoy.process.render", istio) if kind == ISTIO else nullcontext()
    with rendered:
        async with Serving(folder, variant=variant, envoy=envoy, policy=policy, **CONFIG) as serving:
            yield serving


async def behind(kind: str, attack: Callable[[Rig], None]) -> None:
    """Attack a picker behind an Envoy through which chats go.

    Args:
        kind: one of `BEHIND`.
        attack: called in a thread, because the replicas are in this process.
    """
    with tempfile.TemporaryDirectory(prefix="epp-attacks-") as name:
        folder = Path(name)
        async with gateway(kind, folder) as serving:
            probes = [
                Probe(folder, "chat", "chat", serving.url.removeprefix("http://"), ATTACKER),
                Probe(folder, "ready", "ready", serving.picker.http, ATTACKER),
            ]

            def run() -> None:
                with Rig(serving.picker.pid, serving.picker.grpc, probes) as rig:
                    attack(rig)

            await asyncio.to_thread(run)


def istio(settings: EnvoySettings) -> str:
    """Full duplex as Istio 1.31 writes it for a pool that fails closed.

    The filter does nothing unless the route overrides it. No timeout ends the wait for a pick and no health
    check finds the picker gone. The pick is read from metadata, round robin without one.
    """
    tree = yaml.safe_load(render(settings))
    resources = tree["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    processor = manager["http_filters"][0]["typed_config"]
    route = manager["route_config"]["virtual_hosts"][0]["routes"][-1]
    modes, asked = processor["processing_mode"], processor["grpc_service"]
    overrides = {"processing_mode": modes, "grpc_service": asked, "failure_mode_allow": False}
    override = {"@type": _TYPE.format("filters.http.ext_proc.v3.ExtProcPerRoute"), "overrides": overrides}
    route["typed_per_filter_config"] = {EXT_PROC: override}
    processor["processing_mode"] = {"request_header_mode": "SKIP", "response_header_mode": "SKIP"}
    processor["grpc_service"] = {"envoy_grpc": {"cluster_name": "dummy"}, "timeout": "10s"}
    processor["message_timeout"] = "1000s"
    manager["stream_idle_timeout"] = route["route"]["idle_timeout"] = "0s"
    route["route"]["retry_policy"]["num_retries"] = 2
    pool, asks = resources["clusters"]
    for cluster in (pool, asks):
        for key in ("health_checks", "outlier_detection", "close_connections_on_host_health_failure"):
            cluster.pop(key, None)
        cluster["connect_timeout"] = "10s"
    (options,) = asks["typed_extension_protocol_options"].values()
    options["explicit_http_config"] = {"http2_protocol_options": {}}
    (policy,) = pool["load_balancing_policy"]["policies"]
    fallback = _TYPE.format("load_balancing_policies.round_robin.v3.RoundRobin")
    policy["typed_extension_config"]["typed_config"]["fallback_policy"]["policies"] = [
        {"typed_extension_config": {"name": "round_robin", "typed_config": {"@type": fallback}}}
    ]
    resources["clusters"].append(
        {"name": "dummy", "type": "STATIC", "load_assignment": {"cluster_name": "dummy"}}
    )
    return yaml.safe_dump(tree)
