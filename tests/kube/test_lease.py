"""Who holds a Lease: pickers in turns over one API server, each by a clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.config.kubernetes import Kubernetes
from epp.kube.api import KubeApi
from epp.kube.lease import DURATION_S, LOOK_S, LeaseFeed
from tests.kit.clock import ManualClock
from tests.kit.kubefollow import kubeconfig, nowhere
from tests.kit.kubeserver import KubeServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Holders:
    """Pickers that may hold the Lease, and what each believes."""

    def __init__(self, server: KubeServer, api: KubeApi) -> None:
        self.server, self.clock = server, ManualClock()
        self.able = {"a", "b"}
        self.held: dict[str, bool | None] = {}
        self._feeds = {name: self._feed(api, name) for name in ("a", "b")}

    def _feed(self, api: KubeApi, name: str) -> LeaseFeed:
        return LeaseFeed(
            api,
            "default",
            "gorgo-epp-pool",
            holder=name,
            clock=self.clock,
            able=lambda: name in self.able,
            apply=lambda held: self.held.__setitem__(name, held),
        )

    async def look(self, *names: str, times: int = 1) -> dict[str, bool | None]:
        """Let time pass and pickers look."""
        for _ in range(times):
            for name in names:
                self.clock.advance(LOOK_S / len(names))
                await self._feeds[name]._look()
        return self.held

    @property
    def spec(self) -> dict[str, object]:
        (lease,) = self.server.store.objects["coordination.k8s.io", "leases"].values()
        found: dict[str, object] = lease["spec"]
        return found


@pytest.fixture
async def holders(tmp_path: Path) -> AsyncIterator[Holders]:
    server = KubeServer()
    await server.start()
    path = kubeconfig(tmp_path / "config", server.url)
    api = KubeApi(Kubernetes(pool_name="pool", kubeconfig=str(path)), nowhere(tmp_path))
    yield Holders(server, api)
    await api.close()
    await server.stop()


async def test_one_holds_it_and_the_other_takes_it_when_it_is_not_renewed(holders: Holders) -> None:
    assert await holders.look("a", "b", times=10) == {"a": True, "b": False}
    assert (holders.spec["holderIdentity"], holders.spec["leaseTransitions"]) == ("a", 1)
    killed_s = holders.clock.mono_s()
    while not holders.held["b"]:
        await holders.look("b")
    assert holders.clock.mono_s() - killed_s <= DURATION_S + 2 * LOOK_S
    assert (holders.spec["holderIdentity"], holders.spec["leaseTransitions"]) == ("b", 2)
    assert await holders.look("a") == {"a": False, "b": True}, (
        "one that was stopped knows it at its next look"
    )


async def test_who_may_not_lead_does_not_renew_and_has_lost_it_before_another_has_it(
    holders: Holders,
) -> None:
    await holders.look("a", "b", times=3)
    holders.able = {"b"}
    while not holders.held["b"]:
        held = await holders.look("a", "b")
        assert held != {"a": True, "b": True}
    assert holders.held == {"a": False, "b": True}


async def test_of_two_that_find_it_free_the_second_is_refused(holders: Holders) -> None:
    await holders.look("a")
    holders.clock.advance(DURATION_S)
    await holders.look("b")  # it sees it for the first time
    holders.clock.advance(DURATION_S)
    feed, api_get = holders._feeds["b"], holders._feeds["b"]._api.get

    async def slow_get(path: str, params: dict[str, str]) -> bytes:
        content = await api_get(path, params)
        await holders.look("a")
        return content

    feed._api = type("Slow", (), {"get": staticmethod(slow_get), "send": feed._api.send})()
    await feed._look()
    assert holders.held == {"a": True, "b": False}


async def test_without_an_answer_it_is_lost_in_time_and_without_rights_there_is_none(
    holders: Holders, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await holders.look("a")
    holders.server.tokens = {"other"}
    assert (await holders.look("a"))["a"] is True
    assert (await holders.look("a", times=int(DURATION_S / LOOK_S)))["a"] is False
    holders.server.tokens = None
    holders.server.denied = {"leases"}
    assert (await holders.look("a", "b", times=3)) == {"a": None, "b": None}
    assert caplog.text.count("cannot be taken or renewed") == 3, (
        "once for each kind of trouble at each picker"
    )
