"""The cluster as a source of endpoints, priorities and model rules: what is mirrored, and what it adds up to.

Owns the mirrors and the last pool handed over. Three ways in, by configuration: an InferencePool and the pods
that it selects (and its objectives and model rewrites), a selector of pods, or a Service's EndpointSlices;
with nodes for their labels.

Nothing is handed over before everything that it needs has been listed once, and a change of the pool's
selector only when the new pods have been: no half pool is ever in force. A cluster that cannot be read
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from epp.config.kubernetes import POOL_GROUP
from epp.kube.objects import EndpointSlice, InferencePool, ModelRewrite, Named, Objective, Pod, PoolRef
from epp.kube.problems import KubeError, Reason
from epp.kube.reconcile import Discovered, Made, reconcile_pods, reconcile_slices
from epp.kube.reflector import Reflector, Resource
from epp.schedule.model_rules import ModelRules, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.config.kubernetes import Kubernetes
    from epp.kube.reflector import Tools

log = logging.getLogger(__name__)

#: Changes are gathered for this long: a rollout is many events and few pools.
GATHER_S = 0.05
#: InferenceObjective and InferenceModelRewrite, newer group first: where both are served only the newer one
#: counts. Source [E]. Neither has to be installed, and roles made for the newer one need not grant the older.
_GROUPS = {
    "llm-d.ai/v1alpha2": frozenset({Reason.NOT_FOUND}),
    "inference.networking.x-k8s.io/v1alpha2": frozenset({Reason.NOT_FOUND, Reason.FORBIDDEN}),
}
#: v1 of InferenceObjective, which may be installed and not served.
_OBJECTIVES = {"llm-d.ai/v1": frozenset({Reason.NOT_FOUND, Reason.FORBIDDEN}), **_GROUPS}
_SERVICE_LABEL = "kubernetes.io/service-name"


_ForPool = TypeVar("_ForPool", Objective, ModelRewrite)


def _is_ours(ref: PoolRef, settings: Kubernetes) -> bool:
    """Tell whether our pool is meant; a reference without a group means the pool of that name."""
    return ref.name == settings.pool_name and ref.group in {"", POOL_GROUP}


def priorities(
    objectives: Iterable[Objective], settings: Kubernetes, labels: Mapping[str, str]
) -> Mapping[str, int]:
    """Map the objectives of our pool, which has these labels, by name to their priority, by default 0."""
    found = {}
    for one in objectives:
        spec = one.spec
        named = any(_is_ours(ref, settings) for ref in (spec.pool_ref, *(spec.pool_refs or ())))
        if named or (spec.pool_selector is not None and spec.pool_selector.selects(labels)):
            found[one.metadata.name] = spec.priority or 0
    return found


def model_rules(rewrites: Iterable[ModelRewrite], settings: Kubernetes) -> list[Rule]:
    """List the rules for our pool, those of the oldest rewrite first; names decide among equally old ones."""
    rules = []
    for rewrite in sorted(
        (one for one in rewrites if _is_ours(one.spec.pool_ref, settings)),
        key=lambda found: (found.metadata.creation_timestamp or "", found.metadata.name),
    ):
        for rule in rewrite.spec.rules:
            models = tuple(match.model.value for match in rule.matches or () if match.model)
            targets = tuple((target.model_rewrite, target.weight or 0) for target in rule.targets or ())
            if models or not rule.matches:
                rules.append(Rule(rewrite.metadata.name, models, targets))
    return rules


def _served(mirrors: Iterable[Reflector[_ForPool]]) -> Iterable[_ForPool]:
    """Return the objects of the first group that is served."""
    return next((mirror.objects.values() for mirror in mirrors if mirror.synced), ())


class KubeSource:
    """Follows a cluster while `run` runs.

    Args:
        settings: what to follow.
        namespace: where.
        tools: the API server, the time, where to count.
        apply: takes every new pool.
        apply_rules: takes the rules for models, before a pool that they are for.
    """

    def __init__(
        self,
        settings: Kubernetes,
        namespace: str,
        tools: Tools,
        apply: Callable[[Discovered], None],
        apply_rules: Callable[[ModelRules], None],
    ) -> None:
        self._settings, self._namespace, self._tools, self._apply = settings, namespace, tools, apply
        self._apply_rules, self._rules = apply_rules, list[Rule]()
        self._dirty = asyncio.Event()
        self._running: dict[Reflector[Any], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._current = Discovered()
        self._memory: dict[int, Made] = {}
        self._reported: frozenset[str] = frozenset()
        self._applied = False
        self._priorities: Mapping[str, int] = {}
        self._nodes = self._mirror("nodes", "/api/v1/nodes", Named, metadata_only=True)
        self._pool: Reflector[InferencePool] | None = None
        #: In the order of `_OBJECTIVES` and `_GROUPS`.
        self._objectives: list[Reflector[Objective]] = []
        self._rewrites: list[Reflector[ModelRewrite]] = []
        self._members: Reflector[Pod] | None = None
        self._next_members: Reflector[Pod] | None = None
        self._slices: Reflector[EndpointSlice] | None = None
        if settings.pool_name:
            name = {"fieldSelector": f"metadata.name={settings.pool_name}"}
            path = self._collection(f"{POOL_GROUP}/v1", "inferencepools")
            self._pool = self._mirror("inferencepools", path, InferencePool, name)
            self._objectives = self._optional("inferenceobjectives", Objective, _OBJECTIVES)
            self._rewrites = self._optional("inferencemodelrewrites", ModelRewrite, _GROUPS)
        if settings.selector:
            self._members = self._pods(settings.selector)
        if settings.service:
            label = {"labelSelector": f"{_SERVICE_LABEL}={settings.service}"}
            path = self._collection("discovery.k8s.io/v1", "endpointslices")
            self._slices = self._mirror("endpointslices", path, EndpointSlice, label)

    async def run(self) -> None:
        """Follow for ever."""
        fixed = [self._pool, self._members, self._slices, *self._objectives, *self._rewrites]
        if self._settings.watch_nodes:
            fixed.append(self._nodes)
        async with asyncio.TaskGroup() as self._group:
            for mirror in fixed:
                if mirror is not None:
                    self._start(mirror)
            while True:
                await self._dirty.wait()
                await self._tools.sleep(GATHER_S)
                self._dirty.clear()
                try:
                    self._reconcile()
                except Exception:  # a fault of ours; the next change is another try
                    log.exception("the pool cannot be taken; the last one stays in force")

    def not_ready(self) -> str:
        """Why requests cannot be placed, ``""`` once a pool is in force that is not empty by a mistake."""
        if self._pool is not None and self._pool.synced and not self._pool.objects:
            return f"InferencePool {self._namespace}/{self._settings.pool_name} does not exist"
        if self._applied:
            # Without a problem an empty pool may be scaled from nothing.
            return "" if self._current.specs else min(self._reported, default="")
        for mirror in (self._pool, self._members or self._next_members, self._slices):
            if mirror is not None and mirror.problem is not None:
                return self._advice(mirror.resource, mirror.problem)
        return "waiting for the cluster's first answers"

    def priority(self, objective: str) -> int:
        """Priority of an InferenceObjective by name, 0 for one that does not exist."""
        return self._priorities.get(objective, 0)

    def _collection(self, group: str, plural: str) -> str:
        return f"/apis/{group}/namespaces/{self._namespace}/{plural}"

    def _advice(self, resource: Resource[Any], problem: KubeError) -> str:
        """Say in one sentence what fails and what to do about it."""
        name = resource.name
        group = resource.path.removeprefix("/apis/").split("/namespaces/")[0]
        if problem.reason is Reason.NOT_FOUND:
            pool = self._settings.pool_name
            way_out = (
                f"install its CRD, or set pool.kubernetes.selector instead of pool_name={pool}"
                if name == "inferencepools"
                else "the API server is older than this picker needs"
            )
            return f"the API server does not serve {name} of {group}: {way_out}"
        if problem.reason is Reason.FORBIDDEN and name == "nodes":
            return (
                "the service account may not read nodes: regions and engine classes come from annotations "
                "and labels of pods alone; give it get, list and watch on nodes in a ClusterRole, or do "
                f"without (pool.kubernetes.watch_nodes: false in our configuration) ({problem.message})"
            )
        if problem.reason is Reason.FORBIDDEN:
            of = f"{name} of {group}" if name in {"inferenceobjectives", "inferencemodelrewrites"} else name
            return (
                f"the service account may not read {of}: give it get, list and watch on {name} "
                f"in a Role in namespace {self._namespace} ({problem.message})"
            )
        if problem.reason is Reason.UNAUTHORIZED:
            return f"the API server refuses the credentials for {name}: {problem.message}"
        return f"cannot follow {name}: {problem.message}"

    def _mirror(
        self,
        name: str,
        path: str,
        kind: type[Any],
        params: Mapping[str, str] | None = None,
        *,
        metadata_only: bool = False,
        spared: frozenset[Reason] = frozenset(),
    ) -> Reflector[Any]:
        decode = msgspec.json.Decoder(kind).decode
        resource = Resource(name, path, decode, params or {}, metadata_only=metadata_only, spared=spared)
        return Reflector(resource, self._tools, self._dirty.set, lambda error: self._advice(resource, error))

    def _optional(
        self, plural: str, kind: type[Any], groups: Mapping[str, frozenset[Reason]]
    ) -> list[Reflector[Any]]:
        return [
            self._mirror(plural, self._collection(group, plural), kind, spared=spared)
            for group, spared in groups.items()
        ]

    def _pods(self, selector: str) -> Reflector[Pod]:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        return self._mirror("pods", path, Pod, {"labelSelector": selector})

    def _start(self, mirror: Reflector[Any]) -> None:
        if self._group is not None:
            self._running[mirror] = self._group.create_task(mirror.run(), name=mirror.resource.name)

    def _reconcile(self) -> None:
        pool = self._pool_object()
        labels = (pool and pool.metadata.labels) or {}
        self._priorities = priorities(_served(self._objectives), self._settings, labels)
        rules = model_rules(_served(self._rewrites), self._settings)
        if rules != self._rules:
            self._rules = rules
            self._apply_rules(ModelRules(rules))
        self._follow_pool()
        # The first pool waits for nodes and rules that may be read: regions and names must not come later.
        needed = [self._nodes, *self._rewrites] if self._settings.watch_nodes else self._rewrites
        if not all(mirror.synced or mirror.problem for mirror in needed):
            return
        found = self._discover()
        if found is None:
            return
        for words in sorted(set(found.problems) - self._reported):
            log.warning("%s", words)
        self._reported = frozenset(found.problems)
        if not self._applied or (found.specs, found.aliases) != (self._current.specs, self._current.aliases):
            self._apply(found)
            self._applied, self._current = True, found

    def _follow_pool(self) -> None:
        """Mirror the pods that the pool selects now; the old ones stay in force until those are listed."""
        pool = self._pool_object()
        if pool is None:
            return
        labels = pool.spec.selector.match_labels
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        if self._next_members is not None and not _selects(self._next_members, selector):
            self._stop(self._next_members)
            self._next_members = None
        if self._next_members is None and not _selects(self._members, selector):
            self._next_members = self._pods(selector)
            self._start(self._next_members)
        if self._next_members is not None and self._next_members.synced:
            if self._members is not None:
                self._stop(self._members)
            self._members, self._next_members = self._next_members, None

    def _stop(self, mirror: Reflector[Any]) -> None:
        task = self._running.pop(mirror, None)
        if task is not None:
            task.cancel()

    def _pool_object(self) -> InferencePool | None:
        return next(iter(self._pool.objects.values()), None) if self._pool is not None else None

    def _discover(self) -> Discovered | None:
        nodes = {node.metadata.name: node for node in self._nodes.objects.values()}
        settings, known = self._settings, self._current.specs
        if self._slices is not None:
            if not self._slices.synced:
                return None
            return reconcile_slices(self._slices.objects.values(), nodes, settings, known)
        if self._pool is None:
            ports = tuple(settings.target_ports)
        elif not self._pool.synced:
            return None
        else:
            pool = self._pool_object()
            if pool is None:
                return Discovered()
            ports = tuple(port.number for port in pool.spec.target_ports)
        if self._members is None or not self._members.synced or self._next_members is not None:
            return None
        return reconcile_pods(
            self._members.objects.values(), nodes, ports, settings, known, memory=self._memory
        )


def _selects(mirror: Reflector[Any] | None, selector: str) -> bool:
    return mirror is not None and mirror.resource.params["labelSelector"] == selector
