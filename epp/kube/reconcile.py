"""Pods, or a Service's EndpointSlices, and nodes in, endpoints out: the rules of discovery, pure.

A pod counts when it is ready, has an address and is not being deleted; each port that it serves on is one
endpoint (source [E]). A dual-stack pod is still one replica and so one endpoint; its other addresses are
aliases.

A pod that was an endpoint and is now unready or being deleted stays as *draining* while the process behind it
is the same: it takes no new requests, and those under way keep their leases and end with their outcomes.
Process means pod and start of the containers that declare the port, so that a sidecar's restart changes
nothing and the engine's forgets its cache.

Annotations and labels of a pod describe its endpoint as the endpoints file would, by the same names with one
prefix: ``gorgo-epp/region``, ``gorgo-epp/engine-class`` and so on; an annotation goes before a label. Values
that labels cannot hold (model names with slashes, lists) are annotations. A value that cannot be used is
reported and counts as absent: one pod's typing error must not cost the pool.

Through a Service, for clusters without the CRDs: a pod with two families is in two slices; it is one replica
and so one endpoint. Slices know no restarts of a container: the engine's own metrics show them (start time),
as they do outside Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from epp.config.address import is_ip, join_address, split_address
from epp.config.pool import EndpointSpec, Ranks, RoleName, Rtt, Tokens, misnamed
from epp.config.section import KvUrl, MetricsPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epp.config.kubernetes import Kubernetes
    from epp.kube.objects import ContainerStatus, EndpointSlice, Meta, Named, Pod, SliceEndpoint


HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
PREFIX = "gorgo-epp/"
#: Ports of the pool that a pod really serves on, as a comma list; the newer name first. Source [E].
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
#: Key after the prefix -> type of the field of `EndpointSpec` that is spelled like it.
_FIELDS: Mapping[str, Any] = {
    "models": list,
    "adapters": list,
    "context-tokens": Tokens,
    "kv-capacity-tokens": Tokens,
    "rtt-ms": Rtt,
    "draining": bool,
    "tls": bool,
    "server-name": str,
    "metrics-path": MetricsPath,
    "role": RoleName,
    "ranks": Ranks,
    "kv-events": KvUrl,
    "kv-replay": KvUrl,
}
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a cluster says the pool is.

    Attributes:
        specs: endpoints by canonical address.
        aliases: other addresses of the same endpoints, to their canonical ones.
        problems: what an operator should mend, one sentence each.
    """

    specs: Mapping[str, EndpointSpec] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Offer(NamedTuple):
    """A claim on an address: an IP can pass from a pod that is going to one that comes.

    Attributes:
        rank: larger wins: first those that take requests, then the younger pod.
        spec: the endpoint.
        aliases: its other addresses.
    """

    rank: tuple[bool, str]
    spec: EndpointSpec
    aliases: tuple[str, ...] = ()


def settle(offers: Iterable[Offer], problems: Sequence[str]) -> Discovered:
    """One endpoint per address, in the order of the offers."""
    best: dict[str, Offer] = {}
    for offer in offers:
        address = offer.spec.address
        if address not in best or offer.rank > best[address].rank:
            best[address] = offer
    aliases = {alias: offer.spec.address for offer in best.values() for alias in offer.aliases}
    return Discovered(
        specs={address: offer.spec for address, offer in best.items()},
        aliases={alias: address for alias, address in aliases.items() if alias not in best},
        problems=tuple(dict.fromkeys(problems)),
    )


class Made(NamedTuple):
    """What was made of one pod, of its node's labels and the pool's ports."""

    pod: Pod
    given: tuple[Mapping[str, str], tuple[int, ...]]
    offers: tuple[Offer, ...]
    problems: tuple[str, ...]


def _labels(node: Named | None) -> Mapping[str, str]:
    return (node.metadata.labels if node else None) or {}


def reconcile_pods(
    pods: Iterable[Pod],
    nodes: Mapping[str, Named],
    ports: tuple[int, ...],
    settings: Kubernetes,
    known: Mapping[str, EndpointSpec],
    *,
    memory: dict[int, Made] | None = None,
) -> Discovered:
    """The pool of these pods.

    Args:
        pods: pods that the selector matches.
        nodes: nodes by name, as far as they can be read.
        ports: target ports, in order of rank.
        settings: TLS and the key of the engine class.
        known: the endpoints before, by address.
        memory: of earlier calls with the same settings: a rollout changes few of a thousand pods at a time.
    """
    memory = {} if memory is None else memory
    kept: dict[int, Made] = {}
    offers: list[Offer] = []
    problems: list[str] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        node = nodes.get(pod.spec.node_name)
        given = (_labels(node), ports)
        made = memory.get(id(pod))
        if made is None or made.pod is not pod or made.given != given:
            wrong: list[str] = []
            found = _offers(pod, node=node, ports=ports, settings=settings, known=known, problems=wrong)
            made = Made(pod, given, tuple(found), tuple(wrong))
        if is_serving(pod):  # what becomes of the others depends on what was before
            kept[id(pod)] = made
        offers.extend(made.offers)
        problems.extend(made.problems)
    memory.clear()
    memory.update(kept)
    return settle(offers, problems)


def _offers(
    pod: Pod,
    *,
    node: Named | None,
    ports: tuple[int, ...],
    settings: Kubernetes,
    known: Mapping[str, EndpointSpec],
    problems: list[str],
) -> Iterable[Offer]:
    ip, others = addresses_of(pod)
    if not ip or pod.status.phase in _ENDED:
        return
    serving = is_serving(pod)
    if not serving and not any(join_address(ip, port) in known for port in ports):
        return  # most pods that are not ready have never been: spare them the rest
    fields = stated(pod.metadata, problems)
    draining = fields.pop("draining", False)
    places = [pod.metadata.annotations, pod.metadata.labels, _labels(node)]
    topology = {key: value for key, value in _labels(node).items() if key in (ZONE, REGION)}
    if pod.spec.node_name:
        topology[HOSTNAME] = _labels(node).get(HOSTNAME, pod.spec.node_name)
    active = active_ports(pod.metadata, ports, problems)
    for rank, port in enumerate(ports):
        if port not in active:
            continue
        address, uid = join_address(ip, port), process_of(pod, port)
        if not serving and (address not in known or known[address].uid != uid):
            continue
        labels = {
            **(pod.metadata.labels or {}),
            **topology,
            f"{PREFIX}namespace": pod.metadata.namespace,
            f"{PREFIX}name": f"{pod.metadata.name}-rank-{rank}",
        }
        spec = EndpointSpec(
            address=address,
            uid=uid,
            region=first(places, [f"{PREFIX}region", REGION]),
            engine_class=first(places, [f"{PREFIX}engine-class", settings.engine_class_label]),
            labels=labels,
            draining=draining or not serving,
            **{"tls": settings.tls, **fields},
        )
        aliases = tuple(join_address(other, port) for other in others)
        yield Offer((serving, pod.metadata.creation_timestamp or ""), spec, aliases)


def addresses_of(pod: Pod) -> tuple[str, tuple[str, ...]]:
    """The pod's primary address, ``""`` when it has none, and its others."""
    ips = [entry.get("ip", "") for entry in pod.status.pod_ips or ()]
    if pod.status.pod_ip and pod.status.pod_ip not in ips:
        ips.insert(0, pod.status.pod_ip)
    primary, *others = [ip for ip in ips if is_ip(ip)] or [""]
    return primary, tuple(others)


def is_serving(pod: Pod) -> bool:
    """Whether the kubelet calls the pod ready and nobody has deleted it."""
    ready = any(entry.type == "Ready" and entry.status == "True" for entry in pod.status.conditions or ())
    return ready and pod.metadata.deletion_timestamp is None


def process_of(pod: Pod, port: int) -> str:
    """Identity of the process behind a port: changes with the pod and when its engine restarts."""
    declaring = {
        container.name
        for container in pod.spec.containers or ()
        if any(declared.get("containerPort") == port for declared in container.ports or ())
    }
    starts = sorted(
        _start(status)
        for status in pod.status.container_statuses or ()
        if not declaring or status.name in declaring
    )
    return ":".join([pod.metadata.uid, *starts])


def _start(status: ContainerStatus) -> str:
    running = (status.state or {}).get("running")  # absent while it waits or after it ended
    started = running.get("startedAt", "") if running else "stopped"
    return f"{status.name}/{status.restart_count}/{started}"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def stated(meta: Meta, problems: list[str]) -> dict[str, Any]:
    """Fields of `EndpointSpec` that a pod states; what cannot be used is added to ``problems``."""
    fields: dict[str, Any] = {}
    for key, kind in _FIELDS.items():
        text = first([meta.annotations, meta.labels], [PREFIX + key])
        if not text:
            continue
        try:
            value = _names(text) if kind is list else msgspec.convert(text.strip(), kind, strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"pod {meta.name}: {PREFIX}{key}: {text!r}: {error}; it is left out")
        else:
            fields[key.replace("-", "_")] = value
    if wrong := misnamed(fields.get("models", []), fields.get("adapters", [])):
        key, problem, fix = wrong
        problems.append(f"pod {meta.name}: {PREFIX}{key}: {problem} ({fix}); its names are left out")
        for key in ("models", "adapters"):
            fields.pop(key, None)
    return fields


def first(places: Iterable[Mapping[str, str] | None], keys: Iterable[str]) -> str:
    """The first non-empty value, ``""`` when there is none: all places for one key, then for the next."""
    places = list(places)
    return next(
        (value for key in keys if key for place in places if place and (value := place.get(key, ""))), ""
    )


def active_ports(meta: Meta, ports: tuple[int, ...], problems: list[str]) -> tuple[int, ...]:
    """Those of the pool's ports that the pod serves on: all unless its annotation names some."""
    annotations = meta.annotations or {}
    key = next((key for key in ACTIVE_PORTS if key in annotations), None)
    if key is None:
        return ports
    named = _names(annotations[key])
    known = {str(port): port for port in ports}
    if odd := [text for text in named if text not in known]:
        problems.append(f"pod {meta.name}: {key}: {', '.join(odd)} is none of the pool's ports {list(ports)}")
    return tuple(port for text, port in known.items() if text in named)


_FAMILIES = ("IPv4", "IPv6")


def reconcile_slices(
    slices: Iterable[EndpointSlice],
    nodes: Mapping[str, Named],
    settings: Kubernetes,
    known: Mapping[str, EndpointSpec],
) -> Discovered:
    """The pool of a Service.

    Args:
        slices: the Service's slices.
        nodes: nodes by name, as far as they can be read.
        settings: ports to take, key of the engine class.
        known: the endpoints before, by address.
    """
    problems: list[str] = []
    in_use = {split_address(address)[1] for address in known}
    replicas: dict[str, list[_Entry]] = {}
    for each in sorted(slices, key=lambda each: each.metadata.name):
        if each.address_type not in _FAMILIES:
            problems.append(f"EndpointSlice {each.metadata.name} holds {each.address_type}, not addresses")
            continue
        ports = _ports(each, settings, in_use, problems)
        for listed in each.endpoints or ():
            # Addresses of one entry are interchangeable: the first is the one that everybody uses.
            ip = listed.addresses[0] if listed.addresses else ""
            if is_ip(ip):
                replica = (listed.target_ref.uid if listed.target_ref else "") or ip
                created = each.metadata.creation_timestamp or ""
                replicas.setdefault(replica, []).append(_Entry(each.address_type, ip, ports, created, listed))
    offers: list[Offer] = []
    for entries in replicas.values():
        family = min(entry.family for entry in entries)
        others = [entry.ip for entry in entries if entry.family != family]
        for entry in entries:
            if entry.family == family:
                node = nodes.get(entry.listed.node_name or "")
                offers.extend(_listed_offers(entry, others, node=node, settings=settings, known=known))
    return settle(offers, problems)


class _Entry(NamedTuple):
    """One address of one replica, and what its slice says of it."""

    family: str
    ip: str
    ports: tuple[int, ...]
    created: str
    listed: SliceEndpoint


def _ports(
    each: EndpointSlice, settings: Kubernetes, in_use: set[int], problems: list[str]
) -> tuple[int, ...]:
    """Ports that take requests; a port that comes to the one in use takes nobody out of the pool."""
    found = [entry.port for entry in each.ports or () if entry.port and entry.protocol in {None, "", "TCP"}]
    if settings.target_ports:
        return tuple(port for port in settings.target_ports if port in found)
    if len(found) > 1:
        kept = tuple(port for port in found if port in in_use)
        until = f"; while endpoints at {kept[0]} are known requests go there" if kept else ""
        problems.append(
            f"Service {settings.service} has the ports {sorted(found)}: "
            f"say in pool.kubernetes.target_ports which of them take requests{until}"
        )
        return kept
    return tuple(found)


def _listed_offers(
    entry: _Entry,
    others: list[str],
    *,
    node: Named | None,
    settings: Kubernetes,
    known: Mapping[str, EndpointSpec],
) -> Iterable[Offer]:
    listed = entry.listed
    serving = listed.conditions.ready is not False and not listed.conditions.terminating
    node_labels = (node.metadata.labels if node else None) or {}
    labels = {key: node_labels[key] for key in (ZONE, REGION) if key in node_labels}
    if listed.zone:
        labels[ZONE] = listed.zone
    if listed.node_name:
        labels[HOSTNAME] = listed.node_name
    uid = listed.target_ref.uid if listed.target_ref else ""
    for rank, port in enumerate(entry.ports):
        address = join_address(entry.ip, port)
        if not serving and (address not in known or known[address].uid != uid):
            continue
        name = {f"{PREFIX}name": f"{listed.target_ref.name}-rank-{rank}"} if listed.target_ref else {}
        spec = EndpointSpec(
            address=address,
            uid=uid,
            tls=settings.tls,
            region=first([node_labels], [f"{PREFIX}region", REGION]),
            engine_class=first([node_labels], [f"{PREFIX}engine-class", settings.engine_class_label]),
            labels={**labels, **name},
            draining=not serving,
        )
        yield Offer((serving, entry.created), spec, tuple(join_address(other, port) for other in others))
