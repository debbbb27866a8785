"""What a picker must see of a cluster, on every API server alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kit import kubeobjects as objects
from tests.kit.kubeobjects import NAMESPACE, node, objective, pod, pod_status, pool, rewrite, rule

if TYPE_CHECKING:
    import pytest

    from tests.kit.kubecluster import Cluster

BY_LABEL = {"selector": "app=llm", "target_ports": [8000]}


async def test_pods_come_become_ready_drain_and_go(cluster: Cluster) -> None:
    made = pod("a", node="host")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.pools)
        assert picker.addresses == []
        assert picker.source.not_ready() == "", "an empty pool may be scaled from nothing"
        await cluster.client.create(made)
        await cluster.client.create(pod("other", labels={"app": "else"}))
        await cluster.client.set_status(made, pod_status("10.0.0.1", ready=False))
        await cluster.client.set_status(pod("other", labels={}), pod_status("10.0.0.9"))
        await cluster.client.set_status(made, pod_status("10.0.0.1"))
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await cluster.client.set_status(made, pod_status("10.0.0.1", ready=False))
        await picker.until(lambda: picker.draining == ["10.0.0.1:8000"])
        await cluster.client.set_status(made, pod_status("10.0.0.1"))
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await cluster.client.delete(made, grace_s=30)
        await picker.until(lambda: picker.draining == ["10.0.0.1:8000"])
        await cluster.client.delete(made)
        await picker.until(lambda: not picker.pools[-1].specs)


async def test_a_pool_without_crds_waits_and_says_why_until_they_come(cluster: Cluster) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: "install its CRD" in picker.source.not_ready())
        assert "inferencepools of inference.networking.k8s.io/v1" in picker.source.not_ready()
        await cluster.install(objects.POOL_CRD)
        await picker.until(
            lambda: picker.source.not_ready() == f"InferencePool {NAMESPACE}/pool does not exist"
        )
        await cluster.client.create(pool(ports=(8000, 8001)))
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000", "10.0.0.1:8001"])
        assert picker.source.not_ready() == ""


async def test_a_pool_that_selects_others_swaps_them_at_once(cluster: Cluster) -> None:
    await cluster.install(objects.POOL_CRD)
    await cluster.client.create(pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    await cluster.client.run_pod(pod("b", labels={"app": "new"}), "10.0.0.2")
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await cluster.client.patch(pool(), {"spec": {"selector": {"matchLabels": {"app": "new"}}}})
        await picker.until(lambda: picker.addresses == ["10.0.0.2:8000"])
        assert [list(found.specs) for found in picker.pools] == [["10.0.0.1:8000"], ["10.0.0.2:8000"]]
        await cluster.client.delete(pool())
        await picker.until(lambda: picker.addresses == [])
        assert "does not exist" in picker.source.not_ready()


async def test_regions_come_from_nodes_and_follow_them(cluster: Cluster) -> None:
    await cluster.client.create(node("host", {"topology.kubernetes.io/region": "eu"}))
    await cluster.client.run_pod(pod("a", node="host"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses)
        assert [spec.region for spec in picker.pools[0].specs.values()] == ["eu"], "never a pool without them"
        await cluster.client.patch(
            node("host", {}), {"metadata": {"labels": {"topology.kubernetes.io/region": "us"}}}
        )
        await picker.until(lambda: picker.pools[-1].specs["10.0.0.1:8000"].region == "us")


async def test_objectives_of_the_newer_group_count_where_both_are_served(cluster: Cluster) -> None:
    await cluster.install(objects.POOL_CRD, objects.OLD_OBJECTIVE_CRD)
    await cluster.client.create(pool())
    await cluster.client.create(objective("batch", -1, group=objects.OLD_GROUP))
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.source.priority("batch") == -1)
        assert picker.source.priority("unknown") == 0
        await cluster.install(objects.OBJECTIVE_CRD)
        await cluster.client.create(objective("batch", -7))
        await picker.until(lambda: picker.source.priority("batch") == -7)
        await cluster.client.delete(objective("batch", -7))
        await picker.until(lambda: picker.source.priority("batch") == 0)


async def test_objectives_of_v1_are_for_a_pool_that_names_no_picker(cluster: Cluster) -> None:
    crd = objects.crd("llm-d.ai", "v1", "inferenceobjectives", "InferenceObjective")
    await cluster.install(objects.POOL_CRD, crd)
    ours = pool()
    del ours["spec"]["endpointPickerRef"]
    ours["metadata"]["labels"] = {"tier": "gold"}
    await cluster.client.create(ours)
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    specs: dict[str, dict[str, Any]] = {
        "named": {"priority": 3, "poolRefs": [{"name": "another"}, {"name": "pool"}]},
        "selected": {"priority": 4, "poolSelector": {"matchLabels": {"tier": "gold"}}},
        "foreign": {"priority": 5, "poolRefs": [{"name": "another"}]},
    }
    for name, spec in specs.items():
        made = {"apiVersion": "llm-d.ai/v1", "kind": "InferenceObjective", "metadata": {"name": name}}
        await cluster.client.create({**made, "spec": spec})
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await picker.until(lambda: picker.source.priority("selected") == 4)
        assert [picker.source.priority(name) for name in specs] == [3, 4, 0]


async def test_model_rewrites_of_the_newer_group_are_rules_as_long_as_they_are_there(
    cluster: Cluster,
) -> None:
    await cluster.install(objects.POOL_CRD, objects.OLD_REWRITE_CRD)
    await cluster.client.create(pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    await cluster.client.create(rewrite("canary", rule("chat", old=None), group=objects.OLD_GROUP))

    def target(model: str) -> str:
        found = picker.rules.find(model)
        return found.target("key") if found else ""

    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.pools)
        assert target("chat") == "old", "rules come before the pool"
        await cluster.install(objects.REWRITE_CRD)
        await cluster.client.create(rewrite("canary", rule("chat", v2=1)))
        await picker.until(lambda: target("chat") == "v2")
        await cluster.client.create(rewrite("later", rule("chat", never=1), rule("more", v3=1)))
        await cluster.client.create(rewrite("foreign", rule(never=1), pool_name="another"))
        await picker.until(lambda: target("more") == "v3")
        assert target("chat") == "v2", "the older rewrite holds"
        assert target("any") == ""
        await cluster.client.patch(rewrite("canary"), {"spec": {"rules": [rule(fallback=None)]}})
        await picker.until(lambda: target("any") == "fallback")
        assert target("chat") == "never", "named goes before any, however old"
        for name in ("later", "canary"):
            await cluster.client.delete(rewrite(name))
        await picker.until(lambda: not picker.rules.names)


async def test_a_cluster_without_the_rewrites_crd_or_the_right_to_read_them_serves(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.install(objects.POOL_CRD)
    await cluster.permit(("inferencemodelrewrites.llm-d.ai",))
    await cluster.client.create(pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        assert picker.source.not_ready() == ""
        assert not picker.rules.names
        await picker.until(lambda: picker.seen.failures["inferencemodelrewrites", "forbidden"] > 2)
        told = [record.message for record in caplog.records if "modelrewrites" in record.message]
        assert len(told) == 1, "once, however often it is tried"
        assert "may not read inferencemodelrewrites of llm-d.ai/v1alpha2" in told[0]
        await cluster.permit(())
        await cluster.install(objects.REWRITE_CRD)
        await cluster.client.create(rewrite("canary", rule("chat", v2=1)))
        await picker.until(lambda: picker.rules.find("chat"))


async def test_a_services_slices_are_endpoints(cluster: Cluster) -> None:
    made = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "llm-1", "labels": {"kubernetes.io/service-name": "llm"}},
        "ports": [{"port": 8000, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }  # fmt: skip
    await cluster.client.create(made)
    async with cluster.follow(service="llm") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        entries = [*made["endpoints"], {"addresses": ["10.0.0.2"], "conditions": {"ready": True}}]
        await cluster.client.patch(made, {"endpoints": entries})
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"])


async def test_watches_that_are_cut_go_on_where_they_were(cluster: Cluster) -> None:
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.pools)
        for number in range(1, 4):
            assert cluster.proxy.cut()
            await cluster.client.run_pod(pod(f"p{number}"), f"10.0.0.{number}")
            await picker.until(lambda: len(picker.addresses) == number)  # noqa: B023  # awaited at once
        assert picker.api.lists["pods"] == 1, "resumed, not listed again"
        assert picker.source.not_ready() == ""


async def test_a_watch_that_is_too_old_lists_again(cluster: Cluster) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses)
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        await cluster.client.delete(pod("a"))
        await cluster.client.run_pod(pod("b"), "10.0.0.2")
        await cluster.restart(forget=True)
        cluster.proxy.refusing = False
        await picker.until(lambda: picker.addresses == ["10.0.0.2:8000"])
        assert picker.seen.failures["pods", "gone"], "told 410"
        assert picker.api.lists["pods"] == 2
        assert all(list(found.specs) for found in picker.pools), "never an empty pool in between"


async def test_missing_rights_are_told_and_their_grant_is_noticed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    await cluster.permit(("pods",))
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: "may not read pods" in picker.source.not_ready())
        assert f"Role in namespace {NAMESPACE}" in picker.source.not_ready()
        await picker.until(lambda: picker.seen.fine.get("pods") is False)
        told = [
            record for record in caplog.records if "give it get, list and watch on pods" in record.message
        ]
        assert len(told) == 1, "once, however often it is tried"
        await cluster.permit(())
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        assert picker.seen.fine["pods"] is True


async def test_without_rights_on_nodes_only_regions_are_missing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.permit(("nodes",))
    await cluster.client.create(node("host", {"topology.kubernetes.io/region": "eu"}))
    await cluster.client.run_pod(pod("a", node="host"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        assert picker.source.not_ready() == ""
        await picker.until(lambda: picker.seen.failures["nodes", "forbidden"] > 2)
        told = [record for record in caplog.records if "regions and engine classes" in record.message]
        assert len(told) == 1, "once, however often it is tried"
        await cluster.permit(())
        await picker.until(lambda: picker.pools[-1].specs["10.0.0.1:8000"].region == "eu")
