from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.config.kubernetes import Kubernetes
from epp.kube.objects import ModelRewrite, Named, Objective, Pod
from epp.kube.reconcile import Discovered, Made, reconcile_pods
from epp.kube.source import model_rules, priorities
from epp.schedule.model_rules import Rule
from tests.kit import kubeobjects as objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.config.pool import EndpointSpec

SETTINGS = Kubernetes(selector="app=llm", target_ports=[8000])
DUAL = ["10.0.0.1", "fd00::1"]


def made(name: str = "a", ip: str | list[str] = "10.0.0.1", *, meta: dict[str, Any] | None = None,
         spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **pod: Any) -> Pod:  # fmt: skip
    given = objects.pod(name, **pod)
    given["metadata"] |= {"uid": f"uid-{name}", "namespace": "llm"} | (meta or {})
    given["spec"] |= spec or {}
    given["status"] = objects.pod_status(ip) | (status or {})
    return msgspec.convert(given, Pod)


def found(*pods: Pod, ports: tuple[int, ...] = (8000,), nodes: dict[str, dict[str, str]] | None = None,
          before: Discovered | None = None, **settings: Any) -> Discovered:  # fmt: skip
    known = before.specs if before else {}
    table = {
        name: msgspec.convert(objects.node(name, labels), Named) for name, labels in (nodes or {}).items()
    }
    return reconcile_pods(pods, table, ports, msgspec.structs.replace(SETTINGS, **settings), known)


NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (made(), True),
        (made(status=NOT_READY), False),
        (made(status={"podIP": "", "podIPs": None}), False),
        (made(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), False),
        (made(status={"phase": "Failed"}), False),
    ],
)  # fmt: skip
def test_a_pod_counts_when_it_is_ready_has_an_address_and_stays(pod: Pod, counts: bool) -> None:
    assert list(found(pod).specs) == (["10.0.0.1:8000"] if counts else [])


def test_each_target_port_is_an_endpoint_with_its_rank() -> None:
    specs = found(made(), made("b", "10.0.0.2"), ports=(8001, 8000)).specs
    names = {address: spec.labels["gorgo-epp/name"] for address, spec in specs.items()}
    assert names == {
        "10.0.0.1:8001": "a-rank-0", "10.0.0.1:8000": "a-rank-1",
        "10.0.0.2:8001": "b-rank-0", "10.0.0.2:8000": "b-rank-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("annotations", "active", "problem"),
    [
        ({}, [8000, 8001], ""),
        ({"llm-d.ai/active-ports": "8001"}, [8001], ""),
        ({"inference.networking.k8s.io/active-ports": "8000"}, [8000], ""),
        ({"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}, [8001], ""),
        ({"llm-d.ai/active-ports": "8001,9999"}, [8001], "9999 is none of the pool's ports [8000, 8001]"),
    ],
)
def test_the_active_ports_annotation_chooses_among_the_ports(
    annotations: dict[str, str], active: list[int], problem: str
) -> None:
    result = found(made(annotations=annotations), ports=(8000, 8001))
    assert [int(address.rpartition(":")[2]) for address in result.specs] == active
    assert [problem in words for words in result.problems] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("ips", "address", "aliases"),
    [
        (DUAL, "10.0.0.1:8000", {"[fd00::1]:8000": "10.0.0.1:8000"}),
        (DUAL[::-1], "[fd00::1]:8000", {"10.0.0.1:8000": "[fd00::1]:8000"}),
        (["fd00:0:0::1"], "[fd00::1]:8000", {}),
    ],
)
def test_a_dual_stack_pod_is_one_endpoint(ips: list[str], address: str, aliases: dict[str, str]) -> None:
    result = found(made(ip=ips))
    assert list(result.specs) == [address]
    assert result.aliases == aliases


def test_what_was_an_endpoint_drains_while_its_process_lives() -> None:
    before = found(made())
    for pod in (made(status=NOT_READY), made(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})):
        spec = found(pod, before=before).specs["10.0.0.1:8000"]
        assert spec.draining
        assert spec.uid == before.specs["10.0.0.1:8000"].uid
    stopped = made(status={**NOT_READY, **objects.pod_status("10.0.0.1", ready=False, restarts=1)})
    assert not found(stopped, before=before).specs, "another process than the one that had the leases"
    assert not found(made(meta={"uid": "another"}, status=NOT_READY), before=before).specs


def two_containers(restarted: str = "") -> Pod:
    """A pod with a sidecar, after a restart of one of them."""
    spec = {
        "containers": [
            {"name": "engine", "ports": [{"containerPort": 8000}]},
            {"name": "log-shipper"},
        ]
    }
    statuses = [
        {
            "name": name,
            "restartCount": int(name == restarted),
            "state": {"running": {"startedAt": objects.STARTED}},
        }
        for name in ("engine", "log-shipper")
    ]
    return made(spec=spec, status={"containerStatuses": statuses})


def test_identity_follows_the_pod_and_the_container_that_serves() -> None:
    def uid(pod: Pod) -> str:
        return found(pod).specs["10.0.0.1:8000"].uid

    assert uid(two_containers()) == uid(two_containers("log-shipper"))
    assert uid(two_containers()) != uid(two_containers("engine"))
    assert uid(made()) != uid(made(meta={"uid": "other"}))
    assert uid(made()) != uid(made(status=objects.pod_status("10.0.0.1", started="2026-02-02T00:00:00Z")))
    without_ports = made(spec={"containers": [{"name": "engine"}]})
    again = made(spec={"containers": [{"name": "engine"}]}, status=objects.pod_status("10.0.0.1", restarts=3))
    assert uid(without_ports) != uid(again), "where nobody declares the port every container counts"


def test_an_address_that_passes_on_goes_to_the_pod_that_serves_and_then_to_the_younger() -> None:
    old = made("old", meta={"creationTimestamp": "2026-01-01T00:00:00Z"})
    new = made("new", meta={"creationTimestamp": "2026-01-02T00:00:00Z"})
    going = made(
        "zold",
        meta={"creationTimestamp": "2026-03-01T00:00:00Z", "deletionTimestamp": "2026-03-02T00:00:00Z"},
    )
    assert found(old, new).specs["10.0.0.1:8000"].uid.startswith("uid-new")
    before = found(made("zold"))
    assert found(going, new, before=before).specs["10.0.0.1:8000"].uid.startswith("uid-new")


NODE = {"topology.kubernetes.io/region": "eu-1", "topology.kubernetes.io/zone": "eu-1a",
        "nvidia.com/gpu.product": "H100", "kubernetes.io/hostname": "host-1", "secret": "x"}  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "settings", "region", "engine_class"),
    [
        ({}, {}, "eu-1", "H100"),
        ({"labels": {"gorgo-epp/region": "us"}}, {}, "us", "H100"),
        ({"labels": {"gorgo-epp/region": "us"}, "annotations": {"gorgo-epp/region": "ap"}}, {}, "ap", "H100"),
        ({"labels": {"topology.kubernetes.io/region": "pod"}}, {}, "pod", "H100"),
        ({"annotations": {"gorgo-epp/engine-class": "A100 vllm"}}, {}, "eu-1", "A100 vllm"),
        (
            {"labels": {"gpu": "L4"}},
            {"engine_class_label": "gpu"},
            "eu-1",
            "L4",
        ),
    ],
)
def test_region_and_engine_class_come_from_pod_then_node(
    pod: dict[str, Any], settings: dict[str, Any], region: str, engine_class: str
) -> None:
    spec = found(made(node="n", **pod), nodes={"n": NODE}, **settings).specs["10.0.0.1:8000"]
    assert (spec.region, spec.engine_class) == (region, engine_class)
    assert spec.labels["topology.kubernetes.io/zone"] == "eu-1a"
    assert spec.labels["kubernetes.io/hostname"] == "host-1"
    assert "secret" not in spec.labels


def test_a_pod_says_what_the_endpoints_file_would() -> None:
    stated = {
        "models": "org/a, org/b", "context-tokens": "32768", "kv-capacity-tokens": "500000", "rtt-ms": "12.5",
        "draining": "True", "tls": "true", "server-name": "engine.example", "ranks": "2",
    }  # fmt: skip
    result = found(made(annotations={f"gorgo-epp/{key}": value for key, value in stated.items()}))
    endpoint = result.specs["10.0.0.1:8000"].endpoint()
    assert result.problems == ()
    assert set(endpoint.models) == {"org/a", "org/b"}
    assert (endpoint.context_tokens, endpoint.kv_capacity_tokens) == (32768, 500_000)
    assert (endpoint.draining, endpoint.tls, endpoint.server_name) == (True, True, "engine.example")
    assert result.specs["10.0.0.1:8000"].rtt_ms == 12.5
    names = [each.address for each in result.specs["10.0.0.1:8000"].endpoints()]
    assert names == ["10.0.0.1:8000@0", "10.0.0.1:8000@1"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context-tokens", "32k"),
        ("rtt-ms", "60001"),
        ("draining", "yes"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_and_left_out(key: str, value: str) -> None:
    result = found(made(annotations={f"gorgo-epp/{key}": value}))
    assert list(result.specs) == ["10.0.0.1:8000"]
    assert len(result.problems) == 1
    assert f"pod a: gorgo-epp/{key}: '{value}'" in result.problems[0]


def test_priorities_are_those_of_our_pool() -> None:
    table = [
        objects.objective("batch", -5),
        objects.objective("chat", 10),
        objects.objective("plain", None),
        objects.objective("other", 7, pool_name="another"),
    ]
    foreign = objects.objective("foreign", 3)
    foreign["spec"]["poolRef"]["group"] = objects.OLD_GROUP
    short = objects.objective("short", 4)
    del short["spec"]["poolRef"]["group"]
    decoded = [msgspec.convert(each, Objective) for each in [*table, foreign, short]]
    settings = Kubernetes(pool_name="pool")
    assert priorities(decoded, settings, {}) == {"batch": -5, "chat": 10, "plain": 0, "short": 4}


@pytest.mark.parametrize(
    ("spec", "ours"),
    [
        ({"poolRefs": [{"name": "another"}, {"name": "pool"}]}, True),
        ({"poolRefs": [{"name": "another"}]}, False),
        ({"poolRefs": [{"name": "pool", "group": objects.OLD_GROUP}]}, False),
        ({"poolSelector": {"matchLabels": {"tier": "gold"}}}, True),
        ({"poolSelector": {"matchLabels": {"tier": "gold", "zone": "a"}}}, False),
        ({"poolSelector": {}}, False),
        ({"poolRefs": [{"name": "another"}], "poolSelector": {"matchLabels": {"tier": "gold"}}}, True),
        *(
            ({"poolSelector": {"matchExpressions": [{"key": key, "operator": how, "values": values}]}}, met)
            for key, how, values, met in (
                ("tier", "In", ["gold", "silver"], True), ("tier", "In", ["silver"], False),
                ("tier", "NotIn", ["silver"], True), ("tier", "NotIn", ["gold"], False),
                ("zone", "NotIn", ["a"], True), ("tier", "Exists", None, True), ("zone", "Exists", None, False),
                ("zone", "DoesNotExist", None, True), ("tier", "DoesNotExist", None, False),
                ("tier", "Newer", ["gold"], False),
            )
        ),
    ],
)  # fmt: skip
def test_objectives_of_v1_are_for_the_pools_that_they_name_or_select(
    spec: dict[str, Any], ours: bool
) -> None:
    one = msgspec.convert({"metadata": {"name": "a"}, "spec": {"priority": 3, **spec}}, Objective)
    assert bool(priorities([one], Kubernetes(pool_name="pool"), {"tier": "gold"})) is ours


def test_rules_are_those_for_our_pool_the_oldest_first() -> None:
    made = [
        objects.rewrite("b", objects.rule("m", b=3), creationTimestamp="2026-01-02T00:00:00Z"),
        objects.rewrite("a", objects.rule("m", a=None), creationTimestamp="2026-01-02T00:00:00Z"),
        objects.rewrite(
            "c", objects.rule(x=1, y=None), objects.rule("m"), creationTimestamp="2026-01-01T00:00:00Z"
        ),
        objects.rewrite("foreign", objects.rule(f=1), pool_name="another"),
        objects.rewrite("of nothing", {"matches": [{}], "targets": [{"modelRewrite": "n"}]}),
    ]
    settings = Kubernetes(pool_name="pool")
    assert model_rules([msgspec.convert(each, ModelRewrite) for each in made], settings) == [
        Rule("c", (), (("x", 1), ("y", 0))),
        Rule("c", ("m",), ()),
        Rule("a", ("m",), (("a", 0),)),
        Rule("b", ("m",), (("b", 3),)),
    ]


def test_what_is_remembered_changes_nothing_but_the_time() -> None:
    def nodes(region: str) -> dict[str, Named]:
        labels = {"topology.kubernetes.io/region": region}
        return {"n": msgspec.convert(objects.node("n", labels), Named)}

    memory: dict[int, Made] = {}
    known: Mapping[str, EndpointSpec] = {}
    first, second = made("a", node="n"), made("b", "10.0.0.2", node="n", annotations={"gorgo-epp/tls": "?"})
    steps: list[tuple[list[Pod], str, tuple[int, ...]]] = [
        ([first, second], "eu", (8000,)),
        ([first, second], "eu", (8000,)),
        ([first, second], "us", (8000,)),
        ([first, second], "us", (8000, 8001)),
        ([made("a", status=NOT_READY), second], "us", (8000, 8001)),
        ([first], "us", (8000,)),
    ]
    for pods, region, ports in steps:
        remembered = reconcile_pods(pods, nodes(region), ports, SETTINGS, known, memory=memory)
        assert remembered == reconcile_pods(pods, nodes(region), ports, SETTINGS, known)
        known = remembered.specs
