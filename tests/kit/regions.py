"""Regions as peers on loopback: in each real replicas, a picker process and an Envoy; links that can be cut between."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.federation import DOMAIN, Federation
from epp.config.relays import Relays
from epp.config.schema import RegionRule
from tests.kit.picker import Serving
from tests.kit.ports import free_ports
from tests.kit.relays import certificates
from tests.kit.replicas import quick_config
from tests.kit.tcpproxy import TcpProxy
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from epp_lab.demo.nats import Nats
    from epp_lab.sim.http import SimConfig

#: A request with it has to be answered in the region that it names.
BOUND = "x-bound-to"


class World:
    """Regions, and the links that carry requests and summaries between them.

    Attributes:
        regions: by name.
        links: by both ends, to each region's Envoy for peers, and of each region's picker to NATS.
        forwards: of each region the addresses that stand for its peers.
    """

    def __init__(self) -> None:
        self.regions: dict[str, Serving] = {}
        self.links: dict[tuple[str, str], TcpProxy] = {}
        self.forwards: dict[str, dict[str, str]] = {}

    async def meet(self) -> None:
        """Wait until every region has heard every other, and found the way there open."""
        for name, serving in self.regions.items():
            for other, address in self.forwards[name].items():
                await serving.picker.until_metric(
                    "epp_endpoint_rtt_seconds", lambda rtt: rtt > 0.0, endpoint=address
                )
                await until(partial(self._open, serving, other))
                await serving.picker.until_metric(
                    "epp_region_summary_age_seconds", lambda age: 0.0 < age < 2.0, region=other
                )

    async def _open(self, serving: Serving, other: str) -> bool:
        name = f"cluster.peer-{other}.membership_healthy"
        found = await serving.envoy.admin_json(f"/stats?format=json&filter={name}")
        return any(stat.get("value") for stat in found["stats"])

    def split(self, name: str) -> None:
        """Cut a region off from all others, without a word."""
        for link in self._of(name):
            link.hold()

    def heal(self, name: str) -> None:
        """Join it again; what was under way is gone, as after any longer cut."""
        for link in self._of(name):
            link.cut()
            link.heal()

    def _of(self, name: str) -> list[TcpProxy]:
        return [link for ends, link in self.links.items() if name in ends]


@asynccontextmanager
async def world(
    folder: Path, nats: Nats, replicas: Mapping[str, Sequence[SimConfig]], **config: Any
) -> AsyncIterator[World]:
    """Regions by name with their replicas; ``config`` are sections of all pickers, ``envoy`` settings of Envoys."""
    envoy = config.pop("envoy", {})
    names = tuple(replicas)
    made = World()
    certificates(folder, {name: f"{name}.{DOMAIN}" for name in names})
    (folder / "key").write_text("a key that all regions share, and nobody else")
    own = {name: free_ports() for name in names}
    rules = [{"allow": [name], "header": BOUND, "value": name} for name in names]
    async with AsyncExitStack() as stack:
        for name in names:
            for end, port in (*own.items(), ("nats", int(nats.url.rpartition(":")[2]))):
                if end != name:
                    link = made.links[name, end] = TcpProxy(port)
                    await link.start()
                    stack.push_async_callback(link.stop)
        for name in names:
            home = folder / name
            home.mkdir()
            ports = {each: own[each] if each == name else made.links[name, each].port for each in names}
            relays = Relays(
                regions={each: f"127.0.0.1:{port}" for each, port in ports.items()},
                connections=1,
                ca_file=str(folder / "ca.crt"),
                cert_file=str(folder / f"{name}.crt"),
                key_file=str(folder / f"{name}.key"),
            )
            federation = Federation(
                region=name, key_file=str(folder / "key"), forward_port=free_ports(len(names))
            )
            made.forwards[name] = federation.forwards(names)
            serving = Serving(
                home,
                replicas=replicas[name],
                envoy={
                    **envoy,
                    "relays": relays,
                    "federation": federation,
                    "region_rules": tuple(msgspec.convert(rule, RegionRule) for rule in rules),
                },
                relays=msgspec.to_builtins(relays),
                federation=msgspec.to_builtins(federation),
                regions=rules,
                nats={"url": f"nats://127.0.0.1:{made.links[name, 'nats'].port}"},
                prefix={"secret_file": str(folder / "key")},
                **{"policy": {"name": "local-first"}, **config},
            )
            made.regions[name] = await stack.enter_async_context(serving)
        yield made


def one_each(*names: str, **changes: Any) -> dict[str, list[SimConfig]]:
    """One quick replica in each region, named after it."""
    return {name: [quick_config(name, **changes)] for name in names}
