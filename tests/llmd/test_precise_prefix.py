"""What llm-d's index of KV events and its switch of engines' reported sizes mean here."""

from __future__ import annotations

from typing import Any

import pytest

from epp.config.schema import KvEvents
from epp.prefix_cache.index import PrefixIndex
from epp.signals.datastore import Datastore
from epp.types import Endpoint
from tests.llmd.test_picker_config import config_of


def events_of(kind: str = "precise-prefix-cache-producer", **parameters: Any) -> KvEvents:
    return config_of([{"type": kind, "parameters": parameters}]).config.kv_events


@pytest.mark.parametrize("kind", ["precise-prefix-cache-producer", "precise-prefix-cache-scorer"])
def test_pods_publish_at_llm_ds_port_under_its_topic_and_tiers_weigh_as_there(kind: str) -> None:
    events = events_of(kind)
    assert events == KvEvents(
        enabled=True, address="tcp://{host}:5557", topics=["kv@"], cpu_price=0.8, disk_price=1.0
    )


def test_ports_replay_topic_and_weights_are_those_stated() -> None:
    pods = {"socketPort": 6000, "replaySocketPort": 6001, "podLabelSelector": "app=vllm"}
    tiers = [{"name": "gpu", "weight": 1.0}, {"name": "cpu", "weight": 0.6}, {"name": "disk", "weight": 0.2}]
    events = events_of(
        kvEventsConfig={"topicFilter": "", "podDiscoveryConfig": pods, "concurrency": 8},
        indexerConfig={"kvCacheBackendConfigs": tiers, "kvBlockIndexConfig": {"inMemoryConfig": {"size": 9}}},
        tokenProcessorConfig={"blockSizeTokens": 64},
        speculativeIndexing=True,
    )
    assert (events.address, events.replay_address) == ("tcp://{host}:6000", "tcp://{host}:6001")
    assert (events.topics, events.cpu_price, events.disk_price) == ([], 0.6, 0.2)


def test_engines_may_connect_to_one_endpoint_instead() -> None:
    events = events_of(kvEventsConfig={"zmqEndpoint": "tcp://*:5557", "discoverPods": False})
    assert (events.listen, events.address) == ("tcp://*:5557", "")


def test_with_auto_tune_off_the_stated_capacity_stays() -> None:
    parameters = {"autoTune": False, "lruCapacityPerServer": 1000, "blockSizeTokens": 64}
    made = config_of([{"type": "approx-prefix-cache-producer", "parameters": parameters}])
    assert made.config.prefix.capacity_stated
    assert made.config.prefix.capacity_tokens == 64_000
    index = PrefixIndex(64_000)
    datastore = Datastore(index, capacity_stated=True)
    datastore.apply([Endpoint("a:1")], 0.0)
    datastore.learn_capacity(0, 1_600_000)
    assert index.capacity(0) == 64_000
    assert datastore.kv_capacity_tokens(0) == 1_600_000


def test_with_auto_tune_off_and_nothing_stated_llm_ds_capacity_stays() -> None:
    made = config_of([{"type": "approx-prefix-cache-producer", "parameters": {"autoTune": False}}])
    assert made.config.prefix.capacity_tokens == 31_250 * 64
