"""Prefill, decode and encode in an `EndpointPickerConfig`: which profile does what, and who decides on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.errors import ConfigError
from epp.llmd.flags import read_flags
from epp.llmd.policies.scorers import MediaScorer
from epp.llmd.policies.stages import Always, LlmDStages, Uncached, WithMedia
from epp.llmd.settings import translate
from epp.policies.registry import create
from epp.types import Endpoint, Role
from tests.kit.apps import app_of, ask

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.schema import Config
    from epp.server.app import App

PROFILES = {
    "prefill": [{"pluginRef": "prefill-filter"}, {"pluginRef": "queue-scorer", "weight": 2}],
    "encode": [{"pluginRef": "encode-filter"}, {"pluginRef": "mm"}, {"pluginRef": "two"}],
    "decode": [{"pluginRef": "decode-filter"}, {"pluginRef": "queue-scorer"}],
}
PLUGINS = [
    {"type": "probabilistic-admitter"},
    {"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "encode-filter"}, {"type": "queue-scorer"},
    {"type": "mm-embeddings-cache-producer", "parameters": {"cacheSizeInMBPerServer": 20}},
    {"type": "mm-embeddings-cache-scorer", "name": "mm"},
    {"type": "max-score-picker", "name": "two", "parameters": {"maxNumOfEndpoints": 2}},
    {"type": "always-disagg-pd-decider"}, {"type": "always-disagg-multimodal-decider"},
    {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 512}},
]  # fmt: skip


def read(
    handler: dict[str, Any], kind: str = "disagg-profile-handler", profiles: tuple[str, ...] = tuple(PROFILES)
) -> Config:
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [*PLUGINS, {"type": kind, "parameters": handler}],
        "schedulingProfiles": [{"name": name, "plugins": PROFILES[name]} for name in profiles],
    }
    return translate(read_flags({"pool-name": "p"}), msgspec.json.encode(document), {}).config


def stages(*arguments: Any) -> LlmDStages:
    policy = read(*arguments).policy
    made = create(policy.name, policy.params)
    assert isinstance(made, LlmDStages)
    return made


def test_each_stage_has_its_profile_its_decider_and_its_endpoints() -> None:
    told = {"prefill": "prefix-based-pd-decider", "encode": "always-disagg-multimodal-decider"}
    policy = stages({"deciders": told})
    found = policy.stages
    assert {
        role: (stage.decider, stage.most) for role, stage in found.items() if role is not Role.DECODE
    } == {
        Role.PREFILL: (Uncached(non_cached_tokens=512), 1),
        Role.ENCODE: (WithMedia(), 2),
    }
    assert found[Role.PREFILL].profile.scorer_weights == {"queue-scorer": 2.0}
    assert found[Role.DECODE].profile.filters.keys() == {"probabilistic-admitter", "decode-filter"}
    assert found[Role.PREFILL].profile.filters.keys() == {"prefill-filter"}, "requests are admitted once"
    assert found[Role.ENCODE].profile.scorers == {"mm": MediaScorer(cache_mib=20)}
    assert found[Role.ENCODE].profile.scorers["mm"].required_columns[0].name == "media:10"
    both = Endpoint("a:1", labels={"llm-d.ai/role": "both"})
    assert policy.roles(both) == {Role.PREFILL, Role.DECODE}
    assert policy.admits(both)
    assert not policy.admits(Endpoint("a:1", labels={"llm-d.ai/role": "other"}))


def test_the_names_that_parameters_had_say_the_same() -> None:
    assert stages({"deciderPluginName": "always-disagg-pd-decider"}) == stages(
        {"deciders": {"prefill": "always-disagg-pd-decider"}}
    )
    old = {"prefillDeciderPluginName": "prefix-based-pd-decider", "decodeProfile": "decode"}
    assert stages(old) == stages({"deciders": {"prefill": "prefix-based-pd-decider"}})
    assert stages({"primaryPort": 8000}, "pd-profile-handler") == stages(old)


def test_without_a_decider_a_stage_is_never_of_its_own() -> None:
    assert stages({}).stages.keys() == {Role.DECODE}
    assert stages(
        {"deciders": {"prefill": "always-disagg-pd-decider"}}, "disagg-profile-handler", ("decode",)
    ) == (stages({}))


def test_prefill_first_prefills_every_request_apart_and_asks_no_cache_of_who_will_decode() -> None:
    first = {"stageOrder": "prefillFirst", "deciders": {"encode": "always-disagg-multimodal-decider"}}
    assert stages(first).stages[Role.PREFILL].decider == Always()
    assert stages(first).stages[Role.ENCODE].decider == WithMedia()
    asked = {"stageOrder": "prefill", "deciders": {"encode": "prefix-based-pd-decider"}}
    assert stages(asked).stages.keys() == {Role.DECODE, Role.PREFILL}


def test_one_line_lets_our_policy_choose_all_at_once() -> None:
    config = read({"stageOrder": "joint", "deciders": {"prefill": "always-disagg-pd-decider"}})
    assert (config.policy.name, config.policy.params) == ("gorgo-ms", {})


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ({"profiles": {"decode": "last"}}, "none is named 'last', to decode"),
        ({"deciders": {"prefill": "queue-scorer"}}, "'queue-scorer' is no decider of the file"),
        ({"deciders": {"encode": "nobody"}}, "'nobody' is no decider of the file"),
        ({"deciders": {"encode": "a"}, "deciderPluginName": "b"}, "not both"),
        ({"stageOrder": "middle"}, "stageOrder 'middle' is none of"),
        ({"stageOrder": "prefill-first", "deciders": {"prefill": "a"}}, "no prefill decider goes with"),
        ({"threshold": 0}, "unknown key"),
    ],
    ids=str,
)
def test_what_a_handler_cannot_mean_is_refused(handler: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(handler)


def by_label(folder: Path, *pool: Endpoint, **prefill: Any) -> App:
    """A picker of stages by the label ``part``."""
    parts: dict[str, Any] = {
        role: {"profile": {"filters": {"part": {"type": "by-label", "label": "part", "validValues": [role]}}}}
        for role in ("prefill", "decode")
    }
    parts["prefill"] |= prefill
    app = app_of(folder, policy={"name": "llm-d-stages", "params": {"stages": parts}})
    app.scheduler.set_pool(pool, 0.0)
    return app


A, B = (Endpoint(f"{name}:1", labels={"part": part}) for name, part in (("a", "prefill"), ("b", "decode")))


def test_stages_by_any_label_let_no_client_name_workers(tmp_path: Path) -> None:
    pick = ask(by_label(tmp_path, A, B), x_encoder_hosts_ports="c:1").pick
    assert pick.set_headers["x-prefiller-host-port"] == "a:1"
    assert "x-encoder-hosts-ports" in pick.remove_headers


def test_only_those_who_decode_by_the_policy_s_labels_have_room_for_requests(tmp_path: Path) -> None:
    datastore = by_label(tmp_path, A, B).scheduler.datastore
    assert [each.address for each in datastore.endpoints(datastore.serving(0.0))] == ["b:1"]


def test_an_engine_that_cannot_prefill_gets_a_worker_whatever_is_decided(tmp_path: Path) -> None:
    nobody = {"type": "prefix-based-pd-decider"}
    assert "x-prefiller-host-port" not in ask(by_label(tmp_path, A, B, decider=nobody)).pick.set_headers
    unable = by_label(tmp_path, A, replace(B, prefills=False), decider=nobody)
    assert ask(unable).pick.set_headers["x-prefiller-host-port"] == "a:1"
