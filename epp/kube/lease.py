"""A Lease of the Kubernetes API that one of several pickers holds, renewed while it may lead.

Owns when this picker holds it, by its own clock alone: a Lease that did not change for its whole duration is
free, whatever times are written in it. Who cannot renew has lost it before another can take it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from epp.kube.objects import KubeLease, KubeLeaseSpec
from epp.kube.problems import KubeError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.clock import Clock
    from epp.kube.api import KubeApi

log = logging.getLogger(__name__)

#: A dead holder is replaced within this, two looks and a beat of the pickers.
DURATION_S = 6
LOOK_S = 1.5


class KubeLeaseFeed:
    """Holds a Lease when it is free.

    Args:
        api: the API server.
        namespace: of the Lease.
        name: of the Lease.
        holder: who this is.
        clock: the time.
        able: whether this picker may lead; it does not renew what it cannot use.
        apply: takes whether it is held; None where the service account has no rights on Leases.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        *,
        holder: str,
        clock: Clock,
        able: Callable[[], bool],
        apply: Callable[[bool | None], None],
    ) -> None:
        self._api, self._name, self._holder, self._clock = api, name, holder, clock
        self._able, self._apply = able, apply
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._until_s = -math.inf
        self._seen, self._seen_s = "", 0.0
        self._problem = ""

    async def run(self) -> None:
        """Take and renew for ever."""
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        began_s, allowed = self._clock.mono_s(), True
        try:
            async with asyncio.timeout(LOOK_S):
                if await self._hold(began_s):
                    self._until_s = began_s + DURATION_S
        except (KubeError, TimeoutError, msgspec.MsgspecError) as error:
            allowed = not isinstance(error, KubeError) or error.reason is not Reason.FORBIDDEN
            problem = str(error) or "the API server does not answer"
            if problem != self._problem:
                log.info("the Lease %s cannot be taken or renewed: %s", self._name, problem)
            self._problem = problem
        self._apply(self._clock.mono_s() < self._until_s if allowed else None)

    async def _hold(self, now_s: float) -> bool:
        """Take or renew it, unless another holds it."""
        if not self._able():
            return False
        try:
            content = await self._api.get(f"{self._path}/{self._name}", {})
        except KubeError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            await self._api.send("POST", self._path, self._body(KubeLeaseSpec(), {}))
            return True
        found = msgspec.json.decode(content, type=KubeLease)
        version, spec = found.metadata.resource_version, found.spec
        if version != self._seen:
            self._seen, self._seen_s = version, now_s
        if spec.holder_identity not in (None, "", self._holder) and now_s - self._seen_s < DURATION_S:
            return False
        body = self._body(spec, {"resourceVersion": version})  # which refuses it where another was faster
        await self._api.send("PUT", f"{self._path}/{self._name}", body)
        return True

    def _body(self, before: KubeLeaseSpec, metadata: dict[str, str]) -> dict[str, Any]:
        taken = before.holder_identity != self._holder
        wall = datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, **metadata},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": DURATION_S,
                "leaseTransitions": (before.lease_transitions or 0) + taken,
                "renewTime": wall,
            },
        }
