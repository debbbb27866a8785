"""Who holds a Lease: pickers in turns over one API server, each by a clock of its own."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from epp.config.kubernetes import Kubernetes
from epp.kube.api import KubeApi
from epp.kube.lease import DURATION_S, LOOK_S, KubeLeaseFeed
from tests.kit.clock import ManualClock
from tests.kit.kubefollow import kubeconfig, nowhere
from tests.kit.kubereal import ADMIN, RealKube, binaries
from tests.kit.kubeserver import KubeServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Holders:
    """Pickers that may hold the Lease, and what each believes."""

    def __init__(self, server: KubeServer | RealKube, api: KubeApi, name: str) -> None:
        self.server, self.clock, self._api, self._name = server, ManualClock(), api, name
        self.able = {"a", "b"}
        self.held: dict[str, bool | None] = {}
        self._feeds = {name: self._feed(api, name) for name in ("a", "b")}

    def _feed(self, api: KubeApi, name: str) -> KubeLeaseFeed:
        return KubeLeaseFeed(
            api,
            "default",
            self._name,
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

    async def history(self) -> tuple[str, int]:
        """Who holds it, and how often it was taken."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{self._name}"
        spec = json.loads(await self._api.get(path, {}))["spec"]
        return spec["holderIdentity"], spec["leaseTransitions"]


@pytest.fixture(params=["kit", "real"] if binaries() else ["kit"])
async def holders(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Holders]:
    """The same cases on the kit's server and, where there is one, on a real one."""
    server: KubeServer | RealKube
    if request.param == "real":
        server = request.getfixturevalue("real_kube")
        path = kubeconfig(tmp_path / "config", f"https://127.0.0.1:{server.port}", token=ADMIN)
    else:
        server = KubeServer()
        await server.start()
        path = kubeconfig(tmp_path / "config", server.url)
    api = KubeApi(Kubernetes(pool_name="pool", kubeconfig=str(path)), nowhere(tmp_path))
    yield Holders(server, api, f"gorgo-epp-{secrets.token_hex(4)}")
    await api.close()
    if isinstance(server, KubeServer):
        await server.stop()


async def test_one_holds_it_and_the_other_takes_it_when_it_is_not_renewed(holders: Holders) -> None:
    assert await holders.look("a", "b", times=10) == {"a": True, "b": False}
    assert await holders.history() == ("a", 1)
    killed_s = holders.clock.mono_s()
    while not holders.held["b"]:
        await holders.look("b")
    assert holders.clock.mono_s() - killed_s <= DURATION_S + 2 * LOOK_S
    assert await holders.history() == ("b", 2)
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


@pytest.mark.parametrize("holders", ["kit"], indirect=True)
async def test_without_an_answer_it_is_lost_in_time_and_without_rights_there_is_none(
    holders: Holders, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = holders.server
    assert isinstance(server, KubeServer)
    await holders.look("a")
    server.tokens = {"other"}
    assert (await holders.look("a"))["a"] is True
    assert (await holders.look("a", times=int(DURATION_S / LOOK_S)))["a"] is False
    server.tokens = None
    server.denied = {"leases"}
    assert (await holders.look("a", "b", times=3)) == {"a": None, "b": None}
    assert caplog.text.count("cannot be taken or renewed") == 3, (
        "once for each kind of trouble at each picker"
    )
