"""Who may serve a request at all: rules before cost, each with a name that errors and records carry.

Rules that depend only on the endpoint and on few request properties are evaluated once per pool generation
and remembered; the rules on health, context length and Retry-After are a mask per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from epp.errors import NoEndpointError
from epp.schedule.subset import hosts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from epp.config.schema import RegionRule
    from epp.schedule.subset import Hosts, Subset
    from epp.signals.endpoint import Endpoint

_REMEMBERED = 1024


class Wants(Struct, frozen=True):
    """What a request asks of an endpoint.

    Attributes:
        model: public model name, ``""`` for any.
        context_tokens: prompt plus output that must fit.
        regions: region names allowed, None for any.
        subset: endpoints that the gateway allows, None for any.
    """

    model: str = ""
    context_tokens: int = 0
    regions: frozenset[str] | None = None
    subset: Subset | None = None


class Candidates(Struct, frozen=True):
    """Slots that may serve, and who was removed by which rule.

    Attributes:
        slots: who may serve, in pool order.
        excluded: addresses removed, by rule.
        served_models: what each one's engine calls the model; empty when all of them call it by its public
            name.
    """

    slots: NDArray[np.intp]
    excluded: Mapping[str, tuple[str, ...]]
    served_models: tuple[str, ...] = ()


def allowed_regions(
    rules: Sequence[RegionRule], *, model: str, path: str, headers: Mapping[str, str]
) -> frozenset[str] | None:
    """Regions that all matching rules allow; None when no rule matches."""
    allowed: frozenset[str] | None = None
    for rule in rules:
        if rule.model and not fnmatchcase(model, rule.model):
            continue
        if rule.path_prefix and not path.startswith(rule.path_prefix):
            continue
        if rule.header and headers.get(rule.header.lower()) != rule.value:
            continue
        regions = frozenset(rule.allow)
        allowed = regions if allowed is None else allowed & regions
    return allowed


@dataclass(frozen=True, slots=True)
class _Static:
    slots: NDArray[np.intp]
    context_tokens: NDArray[np.float64] | None
    excluded: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]
    served_models: Mapping[int, str]  # by slot; empty when all call the model by its public name

    def found(self, slots: NDArray[np.intp], excluded: Mapping[str, tuple[str, ...]]) -> Candidates:
        """These slots as candidates."""
        if not self.served_models:
            return Candidates(slots, excluded)
        return Candidates(slots, excluded, tuple(self.served_models[slot] for slot in slots.tolist()))


class Eligibility:
    """Filters the pool. Told of the pool by `set_pool`, of health with each call."""

    def __init__(self) -> None:
        self._pool: tuple[tuple[int, Endpoint], ...] = ()
        self._hosts: Hosts = {}
        #: Whether the model or the length of a request can matter.
        self.names_models = False
        self._memory: dict[tuple[str, frozenset[str] | None], _Static] = {}

    def set_pool(self, endpoints: Sequence[tuple[int, Endpoint]]) -> None:
        """The pool as (slot, endpoint) pairs, in order."""
        self._pool = tuple(endpoints)
        self._hosts = hosts_of(endpoint.address for _, endpoint in self._pool)
        self.names_models = any(
            endpoint.models or endpoint.context_tokens is not None for _, endpoint in self._pool
        )
        self._memory.clear()

    def addresses(self, subset: Subset) -> tuple[str, ...]:
        """Endpoints of the pool that a subset names, in its order."""
        return tuple(subset.addresses(self._hosts))

    def candidates(
        self,
        wants: Wants,
        healthy: NDArray[np.bool_] | None,
        retry_after: Mapping[int, float] | None = None,
    ) -> Candidates:
        """Endpoints that pass every rule.

        Args:
            wants: what the request asks for.
            healthy: mask by slot, None when nobody is ejected.
            retry_after: end of the pause of each slot that asked to be left alone, None when nobody did. They
                serve where no other may: then the one whose pause ends first.

        Raises:
            NoEndpointError: nobody is left; names the rule that removed the last one.
        """
        static = self._static(wants)
        slots, names = static.slots, static.names
        if healthy is None and static.context_tokens is None and wants.subset is None and retry_after is None:
            return static.found(slots, static.excluded)
        excluded = dict(static.excluded)
        if static.context_tokens is not None:
            fits = static.context_tokens >= wants.context_tokens
            slots, names = _keep(slots, names, fits, "context", excluded)
            if not len(slots):
                longest = int(static.context_tokens.max())
                raise NoEndpointError(
                    "context",
                    f"the request needs {wants.context_tokens} tokens of context; at most {longest} fit",
                )
        if wants.subset is not None:
            allowed = wants.subset.addresses(self._hosts)
            mask = np.fromiter((name in allowed for name in names), np.bool_, len(names))
            slots, names = _keep(slots, names, mask, "subset", excluded)
            if not len(slots):
                raise NoEndpointError("subset", "no endpoint that the gateway allows can serve the request")
        if healthy is not None:
            slots, names = _keep(slots, names, healthy[slots], "health", excluded)
            if not len(slots):
                raise NoEndpointError("health", "every endpoint that could serve the request is ejected")
        if retry_after is not None:
            free = [slot not in retry_after for slot in slots.tolist()]
            if not any(free):
                first = min(slots.tolist(), key=retry_after.__getitem__)
                free = [slot == first for slot in slots.tolist()]
            slots, names = _keep(slots, names, np.array(free), "retry-after", excluded)
        return static.found(slots, excluded)

    def _static(self, wants: Wants) -> _Static:
        key = (wants.model, wants.regions)
        found = self._memory.get(key)
        if found is None:
            found = self._evaluate(wants)
            if len(self._memory) >= _REMEMBERED:  # model names come from clients: bounded, oldest out
                self._memory.pop(next(iter(self._memory)))
            self._memory[key] = found
        return found

    def _evaluate(self, wants: Wants) -> _Static:
        if not self._pool:
            raise NoEndpointError("pool-empty", "the pool has no endpoints")
        left = list(self._pool)
        excluded: dict[str, tuple[str, ...]] = {}
        for rule, passes, message in _static_rules(wants):
            out = tuple(endpoint.address for _, endpoint in left if not passes(endpoint))
            if out:
                excluded[rule] = out
                left = [(slot, endpoint) for slot, endpoint in left if passes(endpoint)]
            if not left:
                raise NoEndpointError(rule, message)
        limits = [endpoint.context_tokens for _, endpoint in left]
        context = None
        if any(limit is not None for limit in limits):
            context = np.array([np.inf if limit is None else limit for limit in limits], dtype=np.float64)
        return _Static(
            slots=np.array([slot for slot, _ in left], dtype=np.intp),
            context_tokens=context,
            excluded=excluded,
            names=tuple(endpoint.address for _, endpoint in left),
            served_models=_served_models(wants.model, left),
        )


def _served_models(model: str, endpoints: Sequence[tuple[int, Endpoint]]) -> dict[int, str]:
    served = {slot: endpoint.served_name(model) for slot, endpoint in endpoints}
    return {} if all(name == model for name in served.values()) else served


def _static_rules(wants: Wants) -> tuple[tuple[str, Callable[[Endpoint], bool], str], ...]:
    """Rules on the endpoint alone, in order: name, predicate, message when nobody passes.

    The model comes first: a model whose endpoints all drain exists, and is only not available now.
    """

    def serves_model(endpoint: Endpoint) -> bool:
        return not wants.model or not endpoint.models or wants.model in endpoint.models

    def in_region(endpoint: Endpoint) -> bool:
        return wants.regions is None or endpoint.region in wants.regions

    def takes_requests(endpoint: Endpoint) -> bool:
        return not endpoint.draining

    return (
        ("model", serves_model, f"no endpoint of the pool serves the model {wants.model!r}"),
        ("draining", takes_requests, "every endpoint that could serve the request is draining"),
        ("region", in_region, f"no endpoint in the allowed regions {sorted(wants.regions or ())}"),
    )


def _keep(
    slots: NDArray[np.intp],
    names: tuple[str, ...],
    mask: NDArray[np.bool_],
    rule: str,
    excluded: dict[str, tuple[str, ...]],
) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    if mask.all():
        return slots, names
    excluded[rule] = tuple(name for name, keep in zip(names, mask, strict=True) if not keep)
    return slots[mask], tuple(name for name, keep in zip(names, mask, strict=True) if keep)
