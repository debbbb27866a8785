"""Kubernetes objects, as far as a picker reads them: JSON in, typed values out.

Everything optional in the API is optional here, `null` included. A list is taken apart before its items are
decoded, so that one odd object costs itself and not the list. Never talks to a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Object(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base: immutable; keys that we do not read are skipped."""


class Meta(_Object, frozen=True):
    """`metadata`; times are RFC 3339 in UTC, so they compare as text."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Named(_Object, frozen=True):
    """Any object; what nodes are read as."""

    metadata: Meta = Meta()


class Container(_Object, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: list[dict[str, Any]] | None = None


class PodSpec(_Object, frozen=True):
    """`spec` of a pod."""

    node_name: str = ""
    containers: list[Container] | None = None


class ContainerStatus(_Object, frozen=True):
    """What the kubelet says about a container."""

    name: str = ""
    restart_count: int = 0
    state: dict[str, dict[str, Any] | None] | None = None


class Condition(_Object, frozen=True):
    """A condition; `status` is ``True``, ``False`` or ``Unknown``."""

    type: str = ""
    status: str = ""


class PodStatus(_Object, frozen=True):
    """`status` of a pod."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[dict[str, str]] | None = msgspec.field(default=None, name="podIPs")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Named, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class TargetPort(_Object, frozen=True):
    """A port of an InferencePool."""

    number: int


class Selector(_Object, frozen=True):
    """Labels that the pool's pods have."""

    match_labels: dict[str, str] = {}


class InferencePoolSpec(_Object, frozen=True):
    """`spec` of an InferencePool; every pod serves on all ports, in order of rank."""

    selector: Selector
    target_ports: list[TargetPort] = []


class InferencePool(Named, frozen=True, kw_only=True):
    """An InferencePool."""

    spec: InferencePoolSpec


class PoolRef(_Object, frozen=True):
    """Which pool an objective or a rewrite is for."""

    name: str = ""
    group: str = ""


class Requirement(_Object, frozen=True):
    """A condition on a label; `operator` is ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``."""

    key: str
    operator: str
    values: list[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels meets it."""
        there, values = self.key in labels, self.values or ()
        return {
            "In": there and labels[self.key] in values,
            "NotIn": not there or labels[self.key] not in values,
            "Exists": there,
            "DoesNotExist": not there,
        }.get(self.operator, False)


class PoolSelector(_Object, frozen=True):
    """Labels of the pools that an objective is for."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Tell whether it is for a pool with these labels."""
        wanted, conditions = (self.match_labels or {}).items(), self.match_expressions or ()
        met = wanted <= labels.items() and all(each.holds(labels) for each in conditions)
        return bool(wanted or conditions) and met


class ObjectiveSpec(_Object, frozen=True):
    """`spec` of an InferenceObjective: of v1 with several pools, of v1alpha2 with one."""

    priority: int | None = None
    pool_ref: PoolRef = PoolRef()
    pool_refs: list[PoolRef] | None = None
    pool_selector: PoolSelector | None = None


class Objective(Named, frozen=True):
    """An InferenceObjective."""

    spec: ObjectiveSpec = ObjectiveSpec()


class ModelMatch(_Object, frozen=True):
    """The client's name for a model, as it is."""

    value: str


class Match(_Object, frozen=True):
    """What a rule of a rewrite is for."""

    model: ModelMatch | None = None


class TargetModel(_Object, frozen=True):
    """A model that a rule may give, and how often; those without a weight get none beside one with."""

    model_rewrite: str
    weight: int | None = None


class RewriteRule(_Object, frozen=True):
    """A rule of a rewrite; without matches it is for any model."""

    matches: list[Match] | None = None
    targets: list[TargetModel] | None = None


class RewriteSpec(_Object, frozen=True):
    """`spec` of an InferenceModelRewrite."""

    pool_ref: PoolRef = PoolRef()
    rules: list[RewriteRule] = []


class ModelRewrite(Named, frozen=True):
    """An InferenceModelRewrite."""

    spec: RewriteSpec = RewriteSpec()


class SliceConditions(_Object, frozen=True):
    """Conditions of an endpoint in a slice; no word on readiness means ready."""

    ready: bool | None = None
    terminating: bool | None = None


class TargetRef(_Object, frozen=True):
    """The pod behind an endpoint of a slice."""

    name: str = ""
    uid: str = ""


class SliceEndpoint(_Object, frozen=True):
    """One entry of a slice."""

    addresses: list[str] = []
    conditions: SliceConditions = SliceConditions()
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None


class SlicePort(_Object, frozen=True):
    """A port of a slice."""

    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Named, frozen=True):
    """An EndpointSlice; `address_type` is ``IPv4``, ``IPv6`` or ``FQDN``."""

    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class KubeLeaseSpec(_Object, frozen=True):
    """`spec` of a Lease."""

    holder_identity: str | None = None
    lease_transitions: int | None = None


class KubeLease(Named, frozen=True):
    """A Lease."""

    spec: KubeLeaseSpec = KubeLeaseSpec()


class ListMeta(_Object, frozen=True):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectList(_Object, frozen=True):
    """Any list, its items still as text."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class WatchEvent(_Object, frozen=True):
    """One line of a watch, its object still as text."""

    type: str
    object: msgspec.Raw


class Status(_Object, frozen=True):
    """What a server answers instead of an object."""

    code: int = 0
    reason: str = ""
    message: str = ""
