"""EndpointSlices in, endpoints out: discovery through a Service, for clusters without the CRDs.

A pod with two families is in two slices; it is one replica and so one endpoint. Slices know no restarts of a
container: the engine's own metrics show them (start time), as they do outside Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import is_ip, join_address, split_address
from epp.config.pool import EndpointSpec
from epp.kube.reconcile import HOSTNAME, PREFIX, REGION, ZONE, Discovered, Offer, first, settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.config.kubernetes import Kubernetes
    from epp.kube.objects import EndpointSlice, Named, SliceEndpoint

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
                offers.extend(_offers(entry, others, node=node, settings=settings, known=known))
    return settle(offers, problems)


@dataclass(frozen=True, slots=True)
class _Entry:
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


def _offers(
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
