"""What a pool serves by public names, over all of its endpoints: what clients are told at ``/v1/models``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.apis.listed_models import ListedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.schedule.model_rules import ModelRules
    from epp.signals.fleet import Fleet
    from epp.types import Endpoint


def served_models(
    fleet: Fleet, rules: ModelRules, may_serve: Callable[[Endpoint, str], bool]
) -> dict[str, ListedModel] | None:
    """Collect the models that a client may ask for, each with the largest context that an endpoint gives it.

    An endpoint's names are those of the pool, else those that its engine lists. A model that a rule rewrites
    is known by the name that clients use; what rules make of it is not told.

    Args:
        fleet: the endpoints, and what their engines list.
        rules: rewrite models.
        may_serve: whether an endpoint may serve the client a model.

    Returns:
        By name, in the pool's order; None where no endpoint's names are known.
    """
    found: dict[str, ListedModel] = {}
    known = False
    for slot, endpoint in fleet.members:
        listed = fleet.listed_models(slot)
        names = sorted(endpoint.models) or listed
        known = known or bool(names)
        for name in names:
            if may_serve(endpoint, name):
                found[name] = _larger(_told(endpoint, name, listed), found.get(name))
    rewritten = {name: rule.targets for name, rule in rules.by_model.items() if rule.targets}
    hidden = {target for targets in rewritten.values() for target, _ in targets} | rewritten.keys()
    shown = {name: model for name, model in found.items() if name not in hidden}
    for name, targets in rewritten.items():
        for target, _ in targets:
            if target in found:
                shown[name] = _larger(found[target], shown.get(name))
    return shown if known else None


def _told(endpoint: Endpoint, name: str, listed: Mapping[str, ListedModel]) -> ListedModel:
    """Describe a model by what its engine lists, in public names, within what the operator allows."""
    model = listed.get(endpoint.served_name(name), ListedModel())
    base = listed.get(model.parent, ListedModel())
    public = {engine_name: each for each, engine_name in endpoint.served_names.items()}
    contexts = (model.context_tokens or base.context_tokens, endpoint.context_tokens)
    return model._replace(
        context_tokens=min(filter(None, contexts), default=None),
        parent=public.get(model.parent, model.parent),
    )


def _larger(model: ListedModel, other: ListedModel | None) -> ListedModel:
    contexts: Iterable[int | None] = (model.context_tokens, other.context_tokens if other else None)
    return model._replace(context_tokens=max(filter(None, contexts), default=None))
