"""Pods and nodes in, endpoints out: the rules of discovery as one pure function.

A pod counts when it is ready, has an address and is not being deleted; each port that it serves on is one
endpoint (source [E]). A dual-stack pod is still one replica and so one endpoint; its other addresses are
aliases.

A pod that was an endpoint and is now unready or being deleted stays as *draining* while the process behind it
is the same: it takes no new requests, and those under way keep their leases and end with their outcomes.
Process means pod and start of the containers that declare the port, so that a sidecar's restart changes
nothing and the engine's forgets its cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epp.config.address import is_ip, join_address
from epp.config.pool import EndpointSpec
from epp.kube.keys import PREFIX, active_ports, first, stated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epp.config.kubernetes import Kubernetes
    from epp.kube.objects import ContainerStatus, Named, Pod

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
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


@dataclass(frozen=True, slots=True)
class Offer:
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


class Memory:
    """What was made of pods that have not changed since: a rollout changes few of a thousand at a time."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}

    def recall(self, pod: Pod, node: Named | None, ports: tuple[int, ...]) -> _Made | None:
        """What was made of exactly this, None when it was never."""
        made = self._made.get(id(pod))
        if made is None or made.pod is not pod or made.ports != ports or made.node_labels != _labels(node):
            return None
        return made

    def keep(self, made: Iterable[_Made]) -> None:
        """Remember these and nothing else."""
        self._made = {id(each.pod): each for each in made}


@dataclass(frozen=True, slots=True)
class _Made:
    pod: Pod
    node_labels: Mapping[str, str]
    ports: tuple[int, ...]
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
    memory: Memory | None = None,
) -> Discovered:
    """The pool of these pods.

    Args:
        pods: pods that the selector matches.
        nodes: nodes by name, as far as they can be read.
        ports: target ports, in order of rank.
        settings: address family and keys of labels.
        known: the endpoints before, by address.
        memory: of earlier calls with the same settings.
    """
    memory = memory or Memory()
    offers: list[Offer] = []
    problems: list[str] = []
    kept: list[_Made] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        node = nodes.get(pod.spec.node_name)
        made = memory.recall(pod, node, ports)
        if made is None:
            told: list[str] = []
            found = _offers(pod, node=node, ports=ports, settings=settings, known=known, problems=told)
            offered = tuple(found)
            made = _Made(pod, _labels(node), ports, offered, tuple(told))
        if is_serving(pod):  # what becomes of the others depends on what was before
            kept.append(made)
        offers.extend(made.offers)
        problems.extend(made.problems)
    memory.keep(kept)
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
    ip, others = addresses_of(pod, settings.ip_family)
    if not ip or pod.status.phase in _ENDED:
        return
    serving = is_serving(pod)
    if not serving and not any(join_address(ip, port) in known for port in ports):
        return  # most pods that are not ready have never been: spare them the rest
    fields = stated(pod.metadata, problems)
    draining = fields.pop("draining", False)
    place = place_of(pod, node, settings)
    active = active_ports(pod.metadata, ports, problems)
    for rank, port in enumerate(ports):
        if port not in active:
            continue
        address, uid = join_address(ip, port), process_of(pod, port)
        if not serving and (address not in known or known[address].uid != uid):
            continue
        labels = {
            **(pod.metadata.labels or {}),
            **place.labels,
            f"{PREFIX}namespace": pod.metadata.namespace,
            f"{PREFIX}name": f"{pod.metadata.name}-rank-{rank}",
        }
        spec = EndpointSpec(
            address=address,
            uid=uid,
            region=place.region,
            engine_class=place.engine_class,
            labels=labels,
            draining=draining or not serving,
            **{"tls": settings.tls, **fields},
        )
        aliases = tuple(join_address(other, port) for other in others)
        yield Offer((serving, pod.metadata.creation_timestamp or ""), spec, aliases)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod runs and on what."""

    region: str
    engine_class: str
    labels: Mapping[str, str]


def place_of(pod: Pod, node: Named | None, settings: Kubernetes) -> Place:
    """Region, engine class and topology labels: the pod's own word first, then its node's."""
    node_labels = _labels(node)
    places = [pod.metadata.annotations, pod.metadata.labels, node_labels]
    topology = {key: node_labels[key] for key in (ZONE, REGION) if key in node_labels}
    if pod.spec.node_name:
        topology[HOSTNAME] = node_labels.get(HOSTNAME, pod.spec.node_name)
    return Place(
        region=first(places, [f"{PREFIX}region", settings.region_label]),
        engine_class=first(places, [f"{PREFIX}engine-class", settings.engine_class_label]),
        labels=topology,
    )


def addresses_of(pod: Pod, family: str) -> tuple[str, tuple[str, ...]]:
    """The pod's address in the family wanted (its primary one for ``""``), and its others.

    ``("", ...)`` when it has none: single-stack pods have no choice, so a wanted family that is missing is
    no address.
    """
    ips = [entry.ip for entry in pod.status.pod_ips or ()]
    if pod.status.pod_ip and pod.status.pod_ip not in ips:
        ips.insert(0, pod.status.pod_ip)
    ips = [ip for ip in ips if is_ip(ip)]
    chosen = next((ip for ip in ips if not family or (":" in ip) == (family == "ipv6")), "")
    return chosen, tuple(ip for ip in ips if ip != chosen)


def is_serving(pod: Pod) -> bool:
    """Whether the kubelet calls the pod ready and nobody has deleted it."""
    ready = any(entry.type == "Ready" and entry.status == "True" for entry in pod.status.conditions or ())
    return ready and pod.metadata.deletion_timestamp is None


def process_of(pod: Pod, port: int) -> str:
    """Identity of the process behind a port: changes with the pod and when its engine restarts."""
    declaring = {
        container.name
        for container in pod.spec.containers or ()
        if any(declared.container_port == port for declared in container.ports or ())
    }
    starts = sorted(
        _start(status)
        for status in pod.status.container_statuses or ()
        if not declaring or status.name in declaring
    )
    return ":".join([pod.metadata.uid, *starts])


def _start(status: ContainerStatus) -> str:
    running = status.state.running if status.state else None
    return f"{status.name}/{status.restart_count}/{(running.started_at or '') if running else 'stopped'}"
