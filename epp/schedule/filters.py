"""Filters of endpoints: rules before cost, each with a name that errors and records carry.

Rules that depend only on the endpoint and on few request properties are evaluated once per pool generation
and remembered; the rules on health, context length and Retry-After are a mask per request.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from epp.errors import NoEndpointError
from epp.policies.base import Need, Policy
from epp.schedule.subset import hosts_of
from epp.types import HELPERS, Role, answers, split_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from epp.config.schema import RegionRule
    from epp.schedule.subset import Hosts, Subset
    from epp.types import Endpoint, Flags, Floats, RequestInfo, Slots

_REMEMBERED = 1024


class Candidates(Struct, frozen=True):
    """Slots that may serve, and who was removed by which rule.

    Attributes:
        slots: who may serve, in pool order.
        excluded: addresses removed, by rule.
        served_models: what each one's engine calls the model; empty when all of them call it by its public
            name.
        bound: another endpoint of the pool might answer wrongly: with another model, where it may not, or
            without what a worker did.
        workers: who may do a part of the request for these, by role.
    """

    slots: Slots
    excluded: Mapping[str, tuple[str, ...]]
    served_models: tuple[str, ...] = ()
    bound: bool = False
    workers: Mapping[Role, Slots] = {}


def allowed_regions(
    rules: Sequence[RegionRule], *, model: str | None, path: str, headers: Mapping[str, str]
) -> frozenset[str] | None:
    """Return the regions that all matching rules allow; None when no rule matches.

    A model that is None is unknown, in a body that is not read, and may be any.
    """
    allowed: frozenset[str] | None = None
    for rule in rules:
        if rule.model and model is not None and not fnmatchcase(model, rule.model):
            continue
        if rule.path_prefix and not path.startswith(rule.path_prefix):
            continue
        header = rule.header.lower()
        # HTTP/2's name for it, which Envoy uses for all. Each value of a list binds: a client may have sent
        # the header before the edge added its own.
        value = headers.get(":authority" if header == "host" else header, "")
        if header and rule.value not in (value, *map(str.strip, value.split(","))):
            continue
        regions = frozenset(rule.allow)
        allowed = regions if allowed is None else allowed & regions
    return allowed


class _Static(Struct, frozen=True):
    """What the rules on endpoints alone leave of the pool."""

    found: Candidates
    context_tokens: Floats | None
    served_models: Mapping[int, str]  # by slot; empty when all call the model by its public name
    cannot_prefill: frozenset[int]  # slots


class Filters:
    """Filters the pool.

    Args:
        policy: may have a rule on endpoints of its own, by request.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._pool: dict[int, Endpoint] = {}
        self._hosts: Hosts = {}
        #: Whether the model or the length of a request can matter.
        self.names_models = False
        #: Whether endpoints have roles, or the policy has some do a part of requests for others.
        self.has_roles = False
        #: Whether any endpoint is a rank behind an address that it shares.
        self.has_ranks = False
        #: What a request is for that names no model: the only one of the pool, adapters aside; ``""`` where
        #: an endpoint serves any, None where there are several.
        self.only_model: str | None = ""
        #: By model, regions and the policy that decides.
        self._memory: dict[tuple[str, frozenset[str] | None, int], _Static] = {}
        #: Whether an endpoint of the pool serves a model, whether or not it takes requests now.
        self.serves = lru_cache(_REMEMBERED)(self._serves)
        #: Addresses, and models by engines' names that the engines there do not know, the oldest first; False
        #: where that is not certain before the next list.
        self._refused: dict[tuple[str, str], bool] = {}

    def set_pool(self, endpoints: Sequence[tuple[int, Endpoint]]) -> None:
        """Take the pool as (slot, endpoint) pairs, in order."""
        self._pool = dict(endpoints)
        self._hosts = hosts_of(endpoint.address for endpoint in self._pool.values())
        self.has_roles = any(
            endpoint.roles or self._policy.roles(endpoint).intersection(HELPERS)
            for endpoint in self._pool.values()
        )
        self.has_ranks = any(split_rank(endpoint.address)[1] for endpoint in self._pool.values())
        self.names_models = any(
            endpoint.models or endpoint.context_tokens is not None for endpoint in self._pool.values()
        )
        named = [endpoint.models - endpoint.adapters for endpoint in self._pool.values()]
        names = frozenset[str]().union(*named)
        self.only_model = "" if not all(named) else next(iter(names), "") if len(names) < 2 else None
        self._forget()

    def refuse(self, address: str, name: str, *, certain: bool = True) -> bool:
        """Send an endpoint no requests for a model, by its engine's name, which its engine does not know.

        Where that is not certain, only if the next list of its engine lacks it.

        Returns:
            Whether this is news.
        """
        known = self._refused.get((address, name))
        if known or known is certain:
            return False
        if len(self._refused) >= _REMEMBERED:
            self._refused.pop(next(iter(self._refused)))
        self._refused[address, name] = certain
        self._forget()
        return True

    def listed(self, address: str, names: Collection[str]) -> int:
        """Send an endpoint requests again for models that its engine lists; for all where it lists none.

        Returns:
            How many models it does not list of those that were not certain.
        """
        here = [name for where, name in self._refused if where == address]
        for name in here:
            if not names or name in names:
                del self._refused[address, name]
        if here:
            self._forget()
        return sum(self.refuse(address, name) for name in here if (address, name) in self._refused)

    def _serves(self, model: str) -> bool:
        return any(self._is_served(endpoint, model) for endpoint in self._pool.values())

    def _forget(self) -> None:
        self._memory.clear()
        self.serves.cache_clear()

    def _is_served(self, endpoint: Endpoint, model: str) -> bool:
        if model and endpoint.models and model not in endpoint.models:
            return False
        return not self._refused or not self._refused.get((endpoint.address, endpoint.served_name(model)))

    def addresses(self, subset: Subset) -> tuple[str, ...]:
        """Return the endpoints of the pool that a subset names, in its order."""
        return tuple(subset.addresses(self._hosts))

    def candidates(
        self,
        request: RequestInfo,
        healthy: Flags | None,
        retry_after: Mapping[int, float] | None = None,
        holder: int | None = None,
        unknown: Collection[int] = (),
    ) -> Candidates:
        """Find the endpoints that pass every rule.

        Args:
            request: model, tokens, and the regions and endpoints that it may go to.
            healthy: mask by slot, None when nobody is ejected.
            retry_after: end of the pause of each slot that asked to be left alone, None when nobody did. They
                serve where no other may: then the one whose pause ends first.
            holder: slot whose engine has the response that the request is about, None for any. While it may
                serve, no other may: they know nothing of that response.
            unknown: slots of peer regions that were silent for too long. They serve where no other may.

        Raises:
            NoEndpointError: nobody is left; names the rule that removed the last one.
        """
        static = self._static(request)
        slots, context, served = static.found.slots, static.context_tokens, static.served_models
        asked_of_all = request.subset is None and holder is None
        free_of_masks = context is None and healthy is None and retry_after is None and not unknown
        if asked_of_all and free_of_masks and not static.cannot_prefill:
            return static.found
        excluded = dict(static.found.excluded)
        if context is not None:
            needed = _context_tokens(request)
            fits = context >= needed
            if not fits.any():
                needs = f"the request needs {needed} tokens of context"
                raise NoEndpointError("context", f"{needs}; at most {context.max():.0f} fit")
            slots = self._keep(slots, fits, "context", excluded)
        if request.subset is not None:
            allowed = frozenset(request.subset)
            mask = np.array([self._pool[slot].address in allowed for slot in slots.tolist()], np.bool_)
            problem = "no endpoint that the gateway allows can serve the request"
            slots = self._keep(slots, mask, "subset", excluded, problem)
        if healthy is not None:
            problem = "every endpoint that could serve the request is ejected"
            slots = self._keep(slots, healthy[slots], "health", excluded, problem)
        if holder is not None and (is_holder := slots == holder).any():
            slots = self._keep(slots, is_holder, "stored-response", excluded)
        helping = partial(self._helps, request, healthy, retry_after or {})
        workers = {role: _filtered(known, helping) for role, known in static.found.workers.items()}
        helpless = self._helpless(request, static.cannot_prefill, workers)
        for rule, avoided in (("prefill", helpless), ("summary", unknown)):
            if avoided and (mask := np.array([slot not in avoided for slot in slots.tolist()])).any():
                slots = self._keep(slots, mask, rule, excluded)
        if retry_after is not None:
            free = np.array([slot not in retry_after for slot in slots.tolist()])
            if not free.any():
                free = slots == min(slots.tolist(), key=retry_after.__getitem__)
            slots = self._keep(slots, free, "retry-after", excluded)
        names = tuple(served[slot] for slot in slots.tolist()) if served else ()
        bound = static.found.bound or not asked_of_all or bool(excluded.keys() & {"context", "prefill"})
        return Candidates(slots, excluded, names, bound, _some(workers))

    def _helps(
        self, request: RequestInfo, healthy: Flags | None, retry_after: Mapping[int, float], slot: int
    ) -> bool:
        """Tell whether a worker may do a part of a request now."""
        endpoint, needed = self._pool[slot], _context_tokens(request)
        return (
            (healthy is None or bool(healthy[slot]))
            and slot not in retry_after
            and (request.subset is None or endpoint.address in request.subset)
            and (endpoint.context_tokens or needed) >= needed
        )

    def _helpless(
        self, request: RequestInfo, cannot_prefill: Collection[int], workers: Mapping[Role, Slots]
    ) -> Collection[int]:
        """Find those that no worker fits, of those that cannot prefill: they serve where no other may.

        Balanced requests get no worker.
        """
        if not cannot_prefill or (request.opaque and Need.PROMPT in self._policy.needs):
            return cannot_prefill

        def kind(slot: int) -> tuple[str, ...]:
            endpoint = self._pool[slot]
            rank = split_rank(endpoint.address)[1]
            return endpoint.region, endpoint.revision, endpoint.served_name(request.model), rank

        kinds = set(map(kind, workers[Role.PREFILL].tolist() if Role.PREFILL in workers else ()))
        return {slot for slot in cannot_prefill if kind(slot) not in kinds}

    def _keep(
        self,
        slots: Slots,
        mask: Flags,
        rule: str,
        excluded: dict[str, tuple[str, ...]],
        problem: str = "",
    ) -> Slots:
        """Keep the slots of a mask, and note who is removed by which rule."""
        if mask.all():
            return slots
        if not mask.any():
            raise NoEndpointError(rule, problem)
        excluded[rule] = tuple(self._pool[slot].address for slot in slots[~mask].tolist())
        return slots[mask]

    def _static(self, request: RequestInfo) -> _Static:
        policy = self._policy.chosen(request)
        key = (request.model, request.regions, id(policy))
        found = self._memory.get(key)
        if found is None:
            found = self._evaluate(request.model, request.regions, policy)
            if len(self._memory) >= _REMEMBERED:  # model names come from clients: bounded, oldest out
                self._memory.pop(next(iter(self._memory)))
            self._memory[key] = found
        return found

    def _evaluate(self, model: str, regions: frozenset[str] | None, policy: Policy) -> _Static:
        if not self._pool:
            raise NoEndpointError("pool-empty", "the pool has no endpoints")
        left = self._pool
        excluded: dict[str, tuple[str, ...]] = {}
        # The model comes first: a model whose endpoints all drain exists, and is only not available now.
        rules: tuple[tuple[str, Callable[[Endpoint], bool], str], ...] = (
            (
                "model",
                lambda endpoint: self._is_served(endpoint, model),
                f"no endpoint of the pool serves the model {model!r}",
            ),
            (
                "draining",
                lambda endpoint: not endpoint.draining,
                "every endpoint that could serve the request is draining",
            ),
            (
                "region",
                lambda endpoint: regions is None or endpoint.region in regions,
                f"no endpoint in the allowed regions {sorted(regions or ())}",
            ),
            (
                "labels",
                policy.admits,
                "no endpoint has the labels that the policy's filters ask for",
            ),
            (
                "role",
                lambda endpoint: answers(policy.roles(endpoint)),
                "every endpoint that could serve the request is there to prefill or to encode",
            ),
        )
        workers: dict[Role, Slots] = {}
        for rule, passes, problem in rules:
            if rule == "role" and policy.pairs:
                workers = _workers({slot: policy.roles(endpoint) for slot, endpoint in left.items()})
            out = tuple(endpoint.address for endpoint in left.values() if not passes(endpoint))
            if out:
                excluded[rule] = out
                left = {slot: endpoint for slot, endpoint in left.items() if passes(endpoint)}
            if not left:
                raise NoEndpointError(rule, problem)
        limits = [endpoint.context_tokens for endpoint in left.values()]
        served = {slot: endpoint.served_name(model) for slot, endpoint in left.items()}
        if all(name == model for name in served.values()):
            served = {}
            # Both ends of a pair get the same body.
            workers = {
                role: _filtered(known, lambda slot: self._pool[slot].served_name(model) == model)
                for role, known in workers.items()
            }
        context = None
        if limits.count(None) < len(limits):
            context = np.array([np.inf if limit is None else limit for limit in limits])
        named = bool(model) and any(endpoint.models for endpoint in left.values())
        bound = named or bool(excluded.keys() - {"draining"} or _some(workers))
        slots = np.array(list(left), np.intp)
        found = Candidates(slots, excluded, tuple(served.values()), bound, _some(workers))
        cannot_prefill = frozenset(slot for slot, endpoint in left.items() if not endpoint.prefills)
        return _Static(found, context, served, cannot_prefill)


def _workers(roles: Mapping[int, frozenset[Role]]) -> dict[Role, Slots]:
    """Return who is there for a part of requests alone, by role."""
    return {role: np.array([slot for slot, own in roles.items() if role in own], np.intp) for role in HELPERS}


def _some(workers: Mapping[Role, Slots]) -> dict[Role, Slots]:
    return {role: slots for role, slots in workers.items() if len(slots)}


def _filtered(slots: Slots, passes: Callable[[int], bool]) -> Slots:
    return np.array([slot for slot in slots.tolist() if passes(slot)], np.intp)


def _context_tokens(request: RequestInfo) -> int:
    """Return the tokens of context that a request needs."""
    longest = request.context_tokens
    needed = request.prompt_tokens if longest is None else longest
    return needed + (request.max_output_tokens or 0)
