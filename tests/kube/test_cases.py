"""What a picker must see of a cluster, on every API server alike."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.kit import kubeobjects as objects
from tests.kit.kubeobjects import NAMESPACE, node, objective, pod, pod_status, pool
from tests.kit.logs import own_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

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


async def test_a_restart_of_the_engine_is_another_process(cluster: Cluster) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses)
        before = picker.pools[-1].specs["10.0.0.1:8000"].uid
        await cluster.client.set_status(
            pod("a"), pod_status("10.0.0.1", restarts=1, started="2026-01-01T01:00:00Z")
        )
        await picker.until(lambda: picker.pools[-1].specs["10.0.0.1:8000"].uid != before)


async def test_a_pool_that_cannot_be_taken_ends_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(_found: object) -> None:
        raise OverflowError("nobody foresaw this")

    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        with monkeypatch.context() as patch:
            patch.setattr(picker.source, "_apply", odd)
            await picker.until(lambda: picker.seen.failures["pool", "fault"])
            assert "nobody foresaw this" in picker.source.not_ready()
            assert any("nobody foresaw this" in problem for problem in picker.source.problems())
        await cluster.client.run_pod(pod("b"), "10.0.0.2")
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"])
        assert picker.source.not_ready() == ""
        assert picker.source.problems() == []


async def test_a_label_that_goes_takes_the_pod_along(cluster: Cluster) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses)
        await cluster.client.patch(pod("a"), {"metadata": {"labels": {"app": "else"}}})
        await picker.until(lambda: not picker.addresses)


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


async def test_a_pool_of_the_older_group_is_followed(cluster: Cluster) -> None:
    await cluster.install(objects.OLD_POOL_CRD)
    await cluster.client.create(objects.old_pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(pool_name="pool", pool_group=objects.OLD_GROUP) as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])


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


async def test_a_selector_taken_back_before_its_pods_are_listed_changes_nothing(cluster: Cluster) -> None:
    await cluster.install(objects.POOL_CRD)
    await cluster.client.create(pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")

    def selects(app: str) -> Any:
        return {"spec": {"selector": {"matchLabels": {"app": app}}}}

    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        get, asked = picker.api.get, asyncio.Event()

        async def hangs(path: str, params: Mapping[str, str], *, metadata_only: bool = False) -> bytes:
            if params.get("labelSelector") == "app=new":
                asked.set()
                await asyncio.Event().wait()
            return await get(path, params, metadata_only=metadata_only)

        picker.api.get = hangs  # type: ignore[method-assign]  # a server that is slow for these pods
        await cluster.client.patch(pool(), selects("new"))
        await asked.wait()
        await cluster.client.patch(pool(), selects("llm"))
        await picker.until(lambda: picker.source._next_members is None)
        await cluster.client.run_pod(pod("b"), "10.0.0.2")
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"], "still followed")


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


async def test_a_pool_that_is_empty_by_a_mistake_is_not_ready(cluster: Cluster) -> None:
    """It would take the place of a picker that serves."""
    port = {"name": "a", "port": 8000, "protocol": "TCP"}
    made = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "llm-1", "labels": {"kubernetes.io/service-name": "llm"}},
        "ports": [port, {"name": "b", "port": 9100, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }  # fmt: skip
    async with cluster.follow(service="llm") as picker:
        await picker.until(lambda: picker.pools)
        assert picker.source.not_ready() == ""
        await cluster.client.create(made)
        await picker.until(lambda: "target_ports" in picker.source.not_ready())
        await cluster.client.patch(made, {"ports": [port]})
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        assert picker.source.not_ready() == ""


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


async def test_a_restarted_server_changes_nothing_and_is_found_again(cluster: Cluster) -> None:
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.addresses)
        await cluster.restart()
        await cluster.client.run_pod(pod("b"), "10.0.0.2")
        await picker.until(lambda: len(picker.addresses) == 2)
        assert all(list(found.specs) for found in picker.pools)


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
        assert any("watch_nodes: false" in words for words in picker.source.problems())
        await picker.until(lambda: picker.seen.failures["nodes", "forbidden"] > 2)
        told = [record for record in caplog.records if "regions and engine classes" in record.message]
        assert len(told) == 1, "once, however often it is tried"
        await cluster.permit(())
        await picker.until(lambda: picker.pools[-1].specs["10.0.0.1:8000"].region == "eu")


async def test_a_role_for_objectives_of_the_newer_group_is_enough(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.OLD_OBJECTIVE_CRD)
    await cluster.permit((f"inferenceobjectives.{objects.OLD_GROUP}",))
    await cluster.client.create(pool())
    await cluster.client.create(objective("batch", -1))
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.source.priority("batch") == -1)
        await picker.until(lambda: picker.seen.failures["inferenceobjectives", "forbidden"] > 0)
        assert picker.source.problems() == []
        assert picker.seen.fine["inferenceobjectives"] is True
    assert "may not read" not in "".join(own_lines(caplog))


async def test_missing_rights_on_objectives_are_told_with_their_group(cluster: Cluster) -> None:
    await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD)
    await cluster.permit(("inferenceobjectives",))
    await cluster.client.create(pool())
    await cluster.client.run_pod(pod("a"), "10.0.0.1")
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.addresses == ["10.0.0.1:8000"])
        await picker.until(picker.source.problems)
        assert ["inferenceobjectives of llm-d.ai" in words for words in picker.source.problems()] == [True]


async def test_one_group_of_objectives_that_can_be_read_hides_no_other_that_cannot(cluster: Cluster) -> None:
    await cluster.install(objects.POOL_CRD, objects.OBJECTIVE_CRD, objects.OLD_OBJECTIVE_CRD)
    await cluster.permit(("inferenceobjectives.llm-d.ai",))
    await cluster.client.create(pool())
    await cluster.client.create(objective("batch", -1, group=objects.OLD_GROUP))
    async with cluster.follow(pool_name="pool") as picker:
        await picker.until(lambda: picker.source.priority("batch") == -1)
        await picker.until(lambda: picker.seen.failures["inferenceobjectives", "forbidden"] > 2)
        await picker.until(lambda: picker.seen.fine.get("inferenceobjectives") is False)
        assert ("inferenceobjectives", True) not in picker.seen.ever
        await cluster.permit(())
        await picker.until(lambda: picker.seen.fine["inferenceobjectives"])


async def test_a_thousand_pods(cluster: Cluster) -> None:
    names = [(f"p{number:04}", f"10.1.{number // 250}.{number % 250 + 1}") for number in range(1000)]
    async with cluster.follow(**BY_LABEL) as picker:
        for start in range(0, len(names), 50):
            batch = names[start : start + 50]
            await asyncio.gather(*(cluster.client.run_pod(pod(name), ip) for name, ip in batch))
        await picker.until(lambda: len(picker.addresses) == 1000)
    async with cluster.follow(**BY_LABEL) as picker:
        await picker.until(lambda: picker.pools)
        assert len(picker.addresses) == 1000, "all pages are in the first pool"
