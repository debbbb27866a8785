"""What clients are told that a pool serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.apis.listed_models import ListedModel
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.model_rules import ModelRules, Rule
from epp.schedule.upstream_models import upstream_models
from epp.signals.datastore import Datastore
from epp.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

A, B = "10.0.0.1:1", "10.0.0.2:1"


def fleet(*members: tuple[Endpoint, Mapping[str, ListedModel]]) -> Datastore:
    made = Datastore(PrefixIndex())
    made.apply([endpoint for endpoint, _ in members], 0.0)
    for endpoint, listed in members:
        slot = made.slot_of(endpoint.address)
        assert slot is not None
        if listed:
            made.learn_models(slot, listed)
    return made


def contexts(made: Datastore, *rules: Rule, region: str = "") -> dict[str, int | None] | None:
    models = upstream_models(made, ModelRules(rules), lambda endpoint, _: region in ("", endpoint.region))
    return None if models is None else {name: model.context_tokens for name, model in models.items()}


def test_the_union_has_each_models_largest_context() -> None:
    made = fleet(
        (Endpoint(A), {"a": ListedModel(1000), "both": ListedModel(2000)}),
        (Endpoint(B), {"both": ListedModel(8000), "b": ListedModel()}),
    )
    assert contexts(made) == {"a": 1000, "both": 8000, "b": None}


def test_public_names_are_told_and_not_engines() -> None:
    endpoint = Endpoint(A, models=frozenset({"chat", "sql"}), served_names={"chat": "org/llama"})
    listed = {"org/llama": ListedModel(4000), "sql": ListedModel(parent="org/llama")}
    models = upstream_models(fleet((endpoint, listed)), ModelRules(), lambda *_: True)
    assert models == {"chat": ListedModel(4000), "sql": ListedModel(4000, parent="chat")}


def test_what_the_operator_allows_bounds_what_an_engine_lists() -> None:
    listed = {"m": ListedModel(32_000)}
    made = fleet((Endpoint(A, models=frozenset("m"), context_tokens=8000), listed))
    assert contexts(made) == {"m": 8000}
    assert contexts(fleet((Endpoint(A, models=frozenset("m"), context_tokens=8000), {}))) == {"m": 8000}


def test_a_rewritten_model_has_its_clients_name_and_its_targets_have_none() -> None:
    made = fleet(
        (Endpoint(A), {"old": ListedModel(1000), "new": ListedModel(2000), "else": ListedModel(3000)})
    )
    canary = Rule("canary", ("food",), (("old", 9), ("new", 1)))
    assert contexts(made, canary) == {"else": 3000, "food": 2000}
    assert contexts(made, Rule("in place", ("old",), (("old", 9), ("new", 1)))) == {"else": 3000, "old": 2000}
    assert contexts(made, Rule("away", ("else",), (("gone", 1),))) == {"old": 1000, "new": 2000}
    assert contexts(made, Rule("kept", ("else",), ())) == {"old": 1000, "new": 2000, "else": 3000}
    assert contexts(made, Rule("any", (), (("old", 1),))) == {"old": 1000, "new": 2000, "else": 3000}


def test_a_client_is_told_what_it_may_have() -> None:
    made = fleet(
        (Endpoint(A, region="eu"), {"m": ListedModel(1000)}),
        (Endpoint(B, region="us"), {"m": ListedModel(8000), "n": ListedModel(1)}),
    )
    assert contexts(made, region="eu") == {"m": 1000}
    assert contexts(made, region="asia") == {}


def test_an_engine_that_lists_nothing_is_left_out_and_alone_is_asked_itself() -> None:
    assert contexts(fleet((Endpoint(A), {}), (Endpoint(B), {"m": ListedModel(1)}))) == {"m": 1}
    assert contexts(fleet((Endpoint(A), {}))) is None
    assert contexts(fleet()) is None
