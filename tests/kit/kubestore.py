"""The memory of an API server for tests: objects, resource versions, history, watches' points of view."""

from __future__ import annotations

import asyncio
import copy
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource that the server serves."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural


CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
            namespaced=False)  # fmt: skip
BUILT_IN = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind("", "v1", "nodes", "Node", namespaced=False),
    Kind("", "v1", "pods", "Pod"),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    CRDS,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One step of history: the object before and after it."""

    version: int
    kind: tuple[str, str]
    before: Object | None
    after: Object | None


class ConflictError(Exception):
    """An object exists, or was changed by somebody else."""


class MissingError(Exception):
    """There is no such object."""


@dataclass(slots=True)
class Store:
    """Objects by (group, plural), then (namespace, name)."""

    version: int = 1000
    oldest: int = 1000
    kinds: dict[tuple[str, str], Kind] = field(default_factory=lambda: {kind.key: kind for kind in BUILT_IN})
    objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, kind: Kind) -> dict[tuple[str, str], Object]:
        return self.objects.setdefault(kind.key, {})

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return self.of(kind)[namespace, name]
        except KeyError:
            raise MissingError(name) from None

    async def create(self, kind: Kind, namespace: str, given: Object) -> Object:
        made = copy.deepcopy(given)
        meta = made.setdefault("metadata", {})
        name = meta["name"]
        if (namespace, name) in self.of(kind):
            raise ConflictError(f'{kind.plural} "{name}" already exists')
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        if kind.namespaced:
            meta["namespace"] = namespace
        made |= {"apiVersion": kind.group_version, "kind": kind.kind}
        await self._commit(kind, None, made)
        if kind is CRDS:
            self._register(made)
        return made

    async def replace(self, kind: Kind, before: Object, after: Object) -> Object:
        kept = ("uid", "creationTimestamp", "name", "namespace", "deletionTimestamp")
        after = copy.deepcopy(after)
        after["metadata"] |= {key: before["metadata"][key] for key in kept if key in before["metadata"]}
        await self._commit(kind, before, after)
        return after

    async def delete(self, kind: Kind, target: Object, grace_s: int | None) -> Object:
        """Remove; a pod on a node goes when its grace is over, which is when it is deleted with none."""
        if kind.plural == "pods" and target.get("spec", {}).get("nodeName") and grace_s != 0:
            after = copy.deepcopy(target)
            after["metadata"]["deletionTimestamp"] = now()
            await self._commit(kind, target, after)
            return after
        await self._commit(kind, target, None)
        return target

    async def compact(self) -> None:
        """Forget history: who watches from before now is told 410."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()
        await self.wake()

    def since(self, version: int, kind: Kind) -> list[Change]:
        """What happened to a kind after a version, in order."""
        start = bisect_right(self.history, version, key=lambda change: change.version)
        return [change for change in self.history[start:] if change.kind == kind.key]

    async def wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _commit(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        self.version += 1
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
            self.of(kind)[identity(after)] = after
        elif before is not None:
            self.of(kind).pop(identity(before), None)
            before = copy.deepcopy(before)
            before["metadata"]["resourceVersion"] = str(self.version)
        self.history.append(Change(self.version, kind.key, before, after))
        await self.wake()

    def _register(self, crd: Object) -> None:
        spec = crd["spec"]
        version, names = spec["versions"][0]["name"], spec["names"]
        served = Kind(spec["group"], version, names["plural"], names["kind"])
        self.kinds[served.key] = served


def identity(target: Object) -> tuple[str, str]:
    return target["metadata"].get("namespace", ""), target["metadata"]["name"]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def matches(target: Object, label_selector: str, field_selector: str) -> bool:
    """Whether an object is selected, by labels and metadata that are equal."""
    labels: dict[str, str] = target["metadata"].get("labels") or {}
    fields = {f"metadata.{name}": value for name, value in target["metadata"].items()}
    wanted = [(labels, label_selector), (fields, field_selector)]
    return all(
        place.get(name) == value
        for place, selector in wanted
        for name, _, value in (each.partition("=") for each in selector.split(",") if each)
    )


def merge(target: Object, patch: Object) -> Object:
    """JSON merge patch, RFC 7396."""
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged
