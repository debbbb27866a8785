"""Which relays a pick goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from epp.config.relays import RELAYS_KEY, Relays
from epp.extproc.types import Destination
from epp.request.relays import RelayPaths
from epp.types import RequestInfo

if TYPE_CHECKING:
    from epp.schedule.decision import Decision


class Fleet:
    regions = ("near", "near", "far", "elsewhere")


class Decided:
    """What of a decision is asked."""

    snapshot = Fleet()
    request = RequestInfo()

    def __init__(self, chosen: int, *fallbacks: int) -> None:
        self.chosen, self.fallbacks = chosen, fallbacks


def paths(connections: int = 1, **regions: str) -> RelayPaths:
    addresses = regions or {"near": "192.0.2.1:8443", "far": "[2001:DB8::1]:8443"}
    return RelayPaths(
        Relays(regions=addresses, connections=connections, ca_file="/a", cert_file="/c", key_file="/k")
    )


def through(relays: RelayPaths, decided: Decided, allowed: frozenset[str] | None = None) -> list[str]:
    pick = Destination("10.0.0.1:8000", "d-1", metadata={"model_public": "m"})
    decided.request = RequestInfo(regions=allowed)
    relays.set_path(pick, cast("Decision", decided))
    assert pick.metadata["model_public"] == "m"
    return pick.metadata.get(RELAYS_KEY, "").split(",")


@pytest.mark.parametrize(
    ("decided", "allowed", "wanted"),
    [
        (Decided(0), None, ["192.0.2.1:8443", "[2001:db8::1]:8443"]),
        (Decided(2, 0), None, ["[2001:db8::1]:8443", "192.0.2.1:8443"]),
        (Decided(0, 1), frozenset({"near"}), ["192.0.2.1:8443"]),
        (Decided(3), frozenset({"elsewhere"}), [""]),
        (Decided(3), None, ["192.0.2.1:8443", "[2001:db8::1]:8443"]),
    ],
)
def test_regions_come_in_the_picks_order_then_the_others_allowed(
    decided: Decided, allowed: frozenset[str] | None, wanted: list[str]
) -> None:
    assert through(paths(), decided, allowed) == wanted


def test_connections_take_turns() -> None:
    relays = paths(3, near="192.0.2.1:8443", far="192.0.2.9:8443")
    first = [through(relays, Decided(0))[0] for _ in range(6)]
    assert first == ["192.0.2.1:8443", "192.0.2.1:8444", "192.0.2.1:8445"] * 2


async def test_relays_by_name_are_named_by_address() -> None:
    relays = paths(near="localhost:8443")
    await relays.resolver.resolve("localhost:8443")
    assert through(relays, Decided(0))[0] in ("127.0.0.1:8443", "[::1]:8443")
