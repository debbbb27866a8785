"""A picker's view of a cluster under test: a source that runs, and what it handed over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

import yaml

from epp.kube.api import KubeApi, Surroundings, namespace_of
from epp.kube.reflector import Tools
from epp.kube.source import KubeSource
from epp.schedule.model_rules import ModelRules
from epp.server.process import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from epp.config.kubernetes import Kubernetes
    from epp.kube.reconcile import Discovered

#: How long a change may take to arrive: far more than it needs on any machine.
PATIENCE_S = 240.0


class Counted:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, str]] = Counter()
        self.fine: dict[str, bool] = {}
        self.ever: set[tuple[str, bool]] = set()

    def failed(self, resource: str, reason: str) -> None:
        self.failures[resource, reason] += 1

    def ok(self, resource: str, *, ok: bool) -> None:
        self.fine[resource] = ok
        self.ever.add((resource, ok))


class Listing(KubeApi):
    """An API client that counts what it lists, a page each."""

    lists: Counter[str]

    async def get(self, path: str, params: Mapping[str, str], *, metadata_only: bool = False) -> bytes:
        self.lists[path.rpartition("/")[2]] += 1
        return await super().get(path, params, metadata_only=metadata_only)


async def _short(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.05))


class Following:
    """A source that runs. Waits are real but short: none is longer than changes are gathered for."""

    def __init__(self, settings: Kubernetes, around: Surroundings) -> None:
        self.seen = Counted()
        self.pools: list[Discovered] = []
        clock = SystemClock()
        self.api = Listing(settings, around)
        self.api.lists = Counter()
        tools = Tools(self.api, self.seen, clock, _short, seed=1)
        self.rules = ModelRules()
        namespace = namespace_of(settings, around)
        self.source = KubeSource(settings, namespace, tools, self.pools.append, self._take_rules)

    def _take_rules(self, rules: ModelRules) -> None:
        self.rules = rules

    @property
    def addresses(self) -> list[str]:
        """Endpoints that take requests now."""
        specs = self.pools[-1].specs if self.pools else {}
        return [address for address, spec in specs.items() if not spec.draining]

    @property
    def draining(self) -> list[str]:
        specs = self.pools[-1].specs if self.pools else {}
        return [address for address, spec in specs.items() if spec.draining]

    async def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait for something to hold.

        Raises:
            AssertionError: it never does.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            pool = list(self.pools[-1].specs) if self.pools else None
            words = f"{what}: {pool} {self.source.not_ready()!r} {self.seen.failures}"
            assert time.monotonic() < deadline_s, words
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(settings: Kubernetes, around: Surroundings) -> AsyncIterator[Following]:
    """Follow a cluster for as long as the block lasts."""
    follower = Following(settings, around)
    task = asyncio.get_running_loop().create_task(follower.source.run())
    try:
        yield follower
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await follower.api.close()
        await asyncio.sleep(0.05)  # as in `KubeClient.close`


def kubeconfig(
    path: Path, url: str, *, token: str = "", token_file: str = "", plugin: list[str] | None = None
) -> Path:
    """Write a kubeconfig file."""
    user: dict[str, object] = {}
    if token:
        user["token"] = token
    if token_file:
        user["tokenFile"] = token_file
    if plugin:
        user["exec"] = {"apiVersion": "client.authentication.k8s.io/v1", "command": plugin[0], "args": plugin[1:],
                        "interactiveMode": "Never"}  # fmt: skip
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


def nowhere(base: Path) -> Surroundings:
    """Surroundings of a process outside any cluster."""
    return Surroundings(environ={}, service_account=base / "none", home=base, base=base)
