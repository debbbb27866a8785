"""The section `pool.kubernetes`: what to follow in a cluster."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from epp.config.section import Port, Section

#: API group of InferencePools.
POOL_GROUP = "inference.networking.k8s.io"


# Label selectors, by their grammar: an API server would refuse another one at every watch.
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/"
_KEY = rf"(?:{_PREFIX})?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_VALUES = rf"\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:==|=|!=)\s*{_VALUE}|\s+(?:in|notin)\s*{_VALUES})?)\s*"
)
_COMMA = re.compile(r",(?![^(]*\))")  # commas inside parentheses separate values


def check_selector(text: str) -> None:
    """Refuse what is no label selector.

    Args:
        text: requirements joined by commas: ``key=value``, ``key!=value``, ``key in (a, b)``,
            ``key notin (a, b)``, ``key``, ``!key``.

    Raises:
        ValueError: naming the requirement that is wrong.
    """
    for requirement in _COMMA.split(text):
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(
                f"{requirement.strip()!r} is not a requirement of a label selector; "
                "write e.g. 'app=vllm,tier in (gold, silver),!canary'"
            )


class Kubernetes(Section, frozen=True):
    """Endpoints from a cluster: set exactly one of `pool_name`, `selector` and `service`.

    Attributes:
        pool_name: InferencePool to follow, with its InferenceObjectives.
        selector: label selector of the pods, for clusters without the CRDs; needs `target_ports`.
        service: Service whose EndpointSlices are followed, likewise.
        target_ports: with `selector`, the ports of each pod; with `service`, those to take of several.
        namespace: when empty, ``$NAMESPACE``, the picker's own, or ``default``.
        engine_class_label: the pod's annotation or label, or its node's label, that names the engine
            class.
        watch_nodes: read nodes' labels; needs a ClusterRole.
        tls: whether the pods speak TLS.
        kubeconfig: credentials file; when empty, the pod's service account, else ``$KUBECONFIG``, else
            ``~/.kube/config``.
    """

    pool_name: str = ""
    selector: str = ""
    service: str = ""
    target_ports: Annotated[list[Port], msgspec.Meta(max_length=8)] = []
    namespace: str = ""
    engine_class_label: str = "nvidia.com/gpu.product"
    watch_nodes: bool = True
    tls: bool = False
    kubeconfig: str = ""

    def __post_init__(self) -> None:
        """One source, complete, and a selector that the API server would accept."""
        wrong = []
        if sum(map(bool, (self.pool_name, self.selector, self.service))) != 1:
            wrong.append("set exactly one of pool_name, selector and service")
        if self.selector:
            try:
                check_selector(self.selector)
            except ValueError as error:
                wrong.append(str(error))
            if not self.target_ports:
                wrong.append("selector needs target_ports, e.g. [8000]")
        if self.pool_name and self.target_ports:
            wrong.append("target_ports come from the InferencePool; drop them or use selector")
        if len(set(self.target_ports)) != len(self.target_ports):
            wrong.append("target_ports names a port twice")
        if wrong:
            raise ValueError("\n".join(wrong))
