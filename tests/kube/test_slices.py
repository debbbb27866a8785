from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.config.kubernetes import Kubernetes
from epp.kube.objects import EndpointSlice, Named
from epp.kube.reconcile import reconcile_slices
from tests.kit import kubeobjects as objects

if TYPE_CHECKING:
    from epp.kube.reconcile import Discovered

NODES = {"n": msgspec.convert(objects.node("n", {"topology.kubernetes.io/region": "eu"}), Named)}


def entry(ip: str, pod: str = "a", **conditions: Any) -> dict[str, Any]:
    return {
        "addresses": [ip], "conditions": conditions, "nodeName": "n", "zone": "eu-a",
        "targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"},
    }  # fmt: skip


def found(*slices: dict[str, Any], before: Discovered | None = None, **settings: Any) -> Discovered:
    decoded = [msgspec.convert(each, EndpointSlice) for each in slices]
    return reconcile_slices(
        decoded, NODES, Kubernetes(service="llm", **settings), before.specs if before else {}
    )


def a_slice(
    *entries: dict[str, Any], ports: tuple[int, ...] = (8000,), kind: str = "IPv4", name: str = "s"
) -> dict[str, Any]:
    return {
        "metadata": {"name": name}, "addressType": kind, "endpoints": list(entries),
        "ports": [{"port": port, "protocol": "TCP"} for port in ports],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({}, True),
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({"ready": False}, False),
        ({"ready": True, "terminating": True}, False),
    ],
)
def test_an_entry_counts_when_it_is_ready_and_stays(conditions: dict[str, Any], counts: bool) -> None:
    assert bool(found(a_slice(entry("10.0.0.1", **conditions))).specs) is counts


def test_an_endpoint_that_terminates_drains() -> None:
    before = found(a_slice(entry("10.0.0.1")))
    assert (
        found(a_slice(entry("10.0.0.1", ready=False, terminating=True)), before=before)
        .specs["10.0.0.1:8000"]
        .draining
    )
    assert not found(a_slice(entry("10.0.0.1", "other", ready=False)), before=before).specs


def test_a_pod_in_two_families_is_one_endpoint() -> None:
    both = (a_slice(entry("10.0.0.1"), name="v4"), a_slice(entry("fd00::1"), kind="IPv6", name="v6"))
    assert list(found(*both).specs) == ["10.0.0.1:8000"]
    assert found(*both).aliases == {"[fd00::1]:8000": "10.0.0.1:8000"}
    assert list(found(both[1]).specs) == ["[fd00::1]:8000"]


def test_several_ports_need_a_word_from_the_operator() -> None:
    result = found(a_slice(entry("10.0.0.1"), ports=(8000, 9100)))
    assert not result.specs
    assert "target_ports" in result.problems[0]
    assert list(found(a_slice(entry("10.0.0.1"), ports=(8000, 9100)), target_ports=[8000]).specs) == [
        "10.0.0.1:8000"
    ]


def test_a_port_that_is_added_takes_nobody_out_of_the_pool() -> None:
    before = found(a_slice(entry("10.0.0.1"), ports=(8000,)))
    after = found(a_slice(entry("10.0.0.1"), entry("10.0.0.2", "b"), ports=(8000, 9100)), before=before)
    assert list(after.specs) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert "target_ports" in after.problems[0]
    assert "while endpoints at 8000 are known requests go there" in after.problems[0]
