"""What a pool serves by public names, over all of its endpoints: what clients are told at ``/v1/models``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.apis.listed_models import ListedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.schedule.model_rules import ModelRules
    from epp.signals.datastore import Datastore
    from epp.types import Endpoint


def upstream_models(
    datastore: Datastore, rules: ModelRules, may_serve: Callable[[Endpoint, str], bool]
) -> dict[str, ListedModel] | None:
    """Collect the models that a client may ask for, each with the largest context that an endpoint gives it.

    An endpoint's names are those of the pool, else those that its engine lists. A model that a rule rewrites
    is known by the name that clients use; what rules make of it is not told.

    Args:
        datastore: the endpoints, and what their engines list.
        rules: rewrite models.
        may_serve: whether an endpoint may serve the client a model.

    Returns:
        By name, in the pool's order; None where no endpoint's names are known.
    """
    found: dict[str, ListedModel] = {}
    known = False
    for slot, endpoint in datastore.members:
        listed = datastore.listed_models(slot)
        for name in sorted(endpoint.models) or listed:
            known = True
            if may_serve(endpoint, name):
                told = _told(endpoint, name, listed)
                found[name] = max(told, found.get(name, told), key=_context)
    rewritten = {name: dict(rule.targets) for name, rule in rules.by_model.items() if rule.targets}
    hidden = rewritten.keys() | set().union(*rewritten.values())
    shown = {name: model for name, model in found.items() if name not in hidden}
    for name, targets in rewritten.items():
        if served := [found[target] for target in targets if target in found]:
            shown[name] = max(served, key=_context)
    return shown if known else None


def _context(model: ListedModel) -> int:
    return model.context_tokens or 0


def is_wrong(endpoint: Endpoint, listed: Mapping[str, ListedModel], asked: str, answered: str) -> bool:
    """Tell whether an endpoint answered by another model than the one asked for, as far as that is known.

    Engines may call a model by an alias, by the base of its adapter, by a file's name, or as the client did.

    Args:
        endpoint: who answered.
        listed: what its engine lists.
        asked: public name.
        answered: name in the answer.
    """
    names, served = endpoint.models | listed.keys(), endpoint.served_name(asked)
    if not names or answered in (asked, served):
        return False
    if asked not in names and served not in names:
        return True
    own, other = listed.get(served), listed.get(answered)
    if own is None or other is None or answered == own.parent or served == other.parent:
        return False
    return bool(own.root) and own.root != other.root


def _told(endpoint: Endpoint, name: str, listed: Mapping[str, ListedModel]) -> ListedModel:
    """Describe a model by what its engine lists, in public names, within what the operator allows."""
    model = listed.get(endpoint.served_name(name), ListedModel())
    public = {engine_name: each for each, engine_name in endpoint.served_names.items()}
    parent = model.parent or ""
    contexts = (model.context_tokens or _context(listed.get(parent, model)), endpoint.context_tokens)
    context_tokens = min(filter(None, contexts), default=None)
    return replace(model, context_tokens=context_tokens, parent=public.get(parent, model.parent))
