"""What llm-d's producers of prefixes and the order of a profile's filters mean, by decisions and their records."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.config.schema import Prefix
from epp.errors import NoEndpointError
from epp.llmd.policies.default import LlmD
from epp.llmd.policies.profile import LlmDProfile
from epp.llmd.policies.scorers import PrefixScorer
from epp.policies.registry import create
from epp.records.schema import decision_of
from epp.schedule.decision import rerun, to_record
from epp.server.process import index_of
from epp.types import Endpoint
from tests.kit.fleets import fleet_view, request
from tests.kit.records import HASHER, ask_of, picker_of
from tests.llmd.test_picker_config import config_of

if TYPE_CHECKING:
    from epp.config.schema import Config
    from epp.schedule.scheduler import Scheduler

ROLES = [Endpoint(f"{role}:1", labels={"llm-d.ai/role": role}) for role in ("decode", "prefill")]
IDLE = {"conditions": [{"metric": "active-requests", "maxValue": 0}], "fallbackOnEmpty": True}
CPU = {"autoTune": False, "lruCapacityPerServer": 400}
BY_CPU = {"prefixMatchInfoProducerName": "cpu"}


def scheduler_of(config: Config, pool: list[Endpoint]) -> Scheduler:
    return picker_of(config.policy.name, params=config.policy.params, pool=pool)


@pytest.mark.parametrize(
    ("order", "second"),
    [(("decode-filter", "utilization-filter"), "decode:1"), (("utilization-filter", "decode-filter"), None)],
)
def test_filters_run_in_the_order_of_the_profile(order: tuple[str, str], second: str | None) -> None:
    """With the one that decodes busy, the idle one is kept first and then does not decode."""
    plugins: list[dict[str, Any]] = [{"type": kind} for kind in (*order, "queue-scorer")]
    plugins[order.index("utilization-filter")]["parameters"] = IDLE
    made = config_of(plugins, [{"pluginRef": plugin["type"]} for plugin in plugins])
    scheduler = scheduler_of(made.config, ROLES)
    first = scheduler.decide(ask_of(1), 0.0, 0.0)
    assert first.endpoint == "decode:1"
    if second is None:
        with pytest.raises(NoEndpointError, match="decode-filter"):
            scheduler.decide(ask_of(2), 0.1, 0.1)
    else:
        assert scheduler.decide(ask_of(2), 0.1, 0.1).endpoint == second
    recorded = decision_of(json.loads(json.dumps(to_record(first))))
    again = rerun(recorded, create(made.config.policy.name, made.config.policy.params))
    assert again.ranking.costs.tolist() == first.ranking.costs.tolist()


def test_each_of_two_prefix_scorers_reads_the_index_of_its_producer() -> None:
    """The larger one, of the CPU, still has a prompt that left the smaller one."""
    made = config_of(
        [
            {
                "type": "approx-prefix-cache-producer",
                "name": "gpu",
                "parameters": {"lruCapacityPerServer": 100},
            },
            {"type": "approx-prefix-cache-producer", "name": "cpu", "parameters": CPU},
            {
                "type": "prefix-cache-scorer",
                "name": "of-gpu",
                "parameters": {"prefixMatchInfoProducerName": "gpu"},
            },
            {"type": "prefix-cache-scorer", "name": "of-cpu", "parameters": BY_CPU},
        ],
        [{"pluginRef": "of-gpu", "weight": 2}, {"pluginRef": "of-cpu", "weight": 1}],
    )
    assert (made.config.prefix.capacity_tokens, made.config.prefix.capacity_stated) == (6400, False)
    assert made.config.policy.params["scorers"]["of-cpu"]["indexTokens"] == 25_600
    params, index = made.config.policy.params, index_of(made.config.prefix, HASHER)
    scheduler = picker_of(made.config.policy.name, params=params, pool=[Endpoint("a:1")], index=index)
    for number in range(4):  # each of 40 blocks
        scheduler.decide(ask_of(number), float(number), float(number))
    terms = scheduler.decide(ask_of(0), 9.0, 9.0).ranking.terms
    assert (terms["of-gpu"].tolist(), terms["of-cpu"].tolist()) == ([0.0], [1.0])


def test_a_scorer_that_names_no_producer_reads_the_index_that_engines_size() -> None:
    made = config_of(
        [
            {"type": "approx-prefix-cache-producer", "name": "cpu", "parameters": CPU},
            {"type": "prefix-cache-scorer", "name": "of-cpu", "parameters": BY_CPU},
            {"type": "prefix-cache-scorer"},
        ]
    )
    assert made.config.prefix == Prefix(capacity_tokens=made.config.prefix.capacity_tokens)
    scorers = made.config.policy.params["scorers"]
    assert [each.get("indexTokens", 0) for each in scorers.values()] == [25_600, 0]


def test_an_index_whose_capacity_is_stated_has_no_other_bound() -> None:
    """llm-d's guide states 401.9M tokens for each server."""
    assert index_of(Prefix(capacity_stated=True), HASHER)._max_tokens == sys.maxsize
    assert index_of(Prefix(), HASHER)._max_tokens == 200_000_000


@pytest.mark.parametrize(
    ("prompt", "cached", "ratio"),
    [(65, 64, 0.5), (64, 64, 1.0), (65, 65, 1.0), (640, 65, 0.1), (63, 0, 0.0), (0, 0, 0.0)],
)
def test_a_partial_last_block_counts_as_a_whole_one(prompt: int, cached: int, ratio: float) -> None:
    asked, seen = request(prompt_tokens=prompt, block_tokens=64.0), fleet_view(1, cached_tokens=[cached])
    assert PrefixScorer().score(asked, seen).tolist() == [ratio]
    terms = LlmD().terms(asked, seen, {"queue_weight": 0.0, "kv_weight": 0.0, "prefix_weight": 1.0})
    np.testing.assert_allclose(terms["prefix"], [1.0 - ratio])


def test_of_engines_events_every_token_counts() -> None:
    plugins: list[dict[str, Any]] = [
        {"type": "precise-prefix-cache-producer"},
        {
            "type": "prefix-cache-scorer",
            "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"},
        },
    ]
    section = config_of(plugins).config.policy
    asked, seen = request(prompt_tokens=65, block_tokens=64.0), fleet_view(1, cached_tokens=[48])
    policy = create(section.name, section.params)
    costs = policy.rank(asked, seen, {"queue_weight": 0.0, "kv_weight": 0.0, "prefix_weight": 1.0}, 0).costs
    np.testing.assert_allclose(costs, [1.0 - 48 / 65])


def test_lmetric_reads_the_index_of_its_producer_and_who_cannot_says_so() -> None:
    made = config_of(
        [
            {"type": "approx-prefix-cache-producer", "name": "gpu"},
            {"type": "approx-prefix-cache-producer", "name": "cpu", "parameters": CPU},
            {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": "gpu"}},
            {"type": "lmetric-scorer", "parameters": BY_CPU},
            {"type": "no-hit-lru-scorer", "parameters": BY_CPU},
        ]
    )
    assert made.config.policy.params["scorers"]["lmetric-scorer"]["indexTokens"] == 25_600
    [warning] = [each for each in made.warnings if "prefixMatchInfoProducerName" in each]
    assert warning.startswith("no-hit-lru-scorer")


def test_filters_of_one_name_in_two_profiles_are_each_asked_by_their_own_labels() -> None:
    def profile(role: str) -> LlmDProfile:
        part = {"type": "by-label", "label": "llm-d.ai/role", "validValues": [role]}
        made = create(
            "llm-d-profile", {"filters": {"idle": {"type": "utilization-filter", **IDLE}, "part": part}}
        )
        assert isinstance(made, LlmDProfile)
        return made

    columns = [column for role in ("decode", "prefill") for column in profile(role).required_columns]
    assert len({column.name for column in columns}) == 2
