"""What a gateway asks for and gets beside the pick, and what a request's body becomes.

Owns the protocol's options: the subset hint, scores, the conformance suite's steering, the words of refusals
(proposal 004; llm-d's error texts [E]), the headers that name the model that answers, and when a body is
rewritten: where the picked engine has its own name for the model, or a streaming client does not ask for the
usage. Decides nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from epp.apis.rewrite import rewrite
from epp.apis.rewrite_answer import restorer
from epp.errors import ClientError
from epp.extproc.messages import SERVED_HEADER
from epp.extproc.types import Pick, Refusal
from epp.llmd.words import DROPPED_REASON, PLAIN_TEXT, dropped_reason, endpoint_scores, error_text
from epp.schedule.subset import Entry, Subset, parse_entries, subset_hint

if TYPE_CHECKING:
    from collections.abc import Collection

    from epp.config.schema import Protocol
    from epp.extproc.types import HttpRequest
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.server.resolve import Resolver


#: The conformance suite names endpoints by this header, in the order in which they are to be tried.
STEERING_HEADER = "test-epp-endpoint-selection"
#: Its echo server answers with the headers that this one lists.
ECHO_HEADER = "x-echo-set-header"
#: Response header: what the engine that answers calls its model. A client sends it back after a wrong answer,
#: to go on with another one (`epp.apis.tried`); nothing is kept between attempts.
SERVED_MODEL_HEADER = "x-epp-served-model"
#: Response header: how many models are left that are worth a further attempt (`Decision.untried_models`).
UNTRIED_HEADER = "x-epp-untried-models"
#: Fields of the decision's metadata: `epp/envoy/restore_model.lua` acts on the first, Envoy fills
#: `SERVED_MODEL_HEADER` and `UNTRIED_HEADER` from the others (`epp.envoy.retry`).
PUBLIC_MODEL_KEY, SERVED_MODEL_KEY, UNTRIED_KEY = "model_public", "model_served", "models_untried"
#: What no header carries: Envoy writes it into the response as it is, where lines end and begin headers.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Gateway:
    """The protocol's options, applied.

    Args:
        settings: which of them are on.
        picker: knows the pool.
        resolver: host names to what Envoy knows.
    """

    def __init__(self, settings: Protocol, picker: Picker, resolver: Resolver) -> None:
        self._settings, self._picker, self._resolver = settings, picker, resolver

    def subset(self, request: HttpRequest) -> tuple[str, ...] | None:
        """List the endpoints of the pool that the gateway allows, None for any.

        Under the conformance switch the first endpoint of the steering header is the only one.
        """
        hint = subset_hint(request.metadata) if self._settings.subset_hint else None
        allowed = None if hint is None else self._picker.filters.addresses(self._understood(hint))
        if self._settings.conformance and (named := request.headers.get(STEERING_HEADER)):
            return self._steered(named, allowed)[:1]
        return allowed

    def pick(self, decision: Decision, destination: str, request: HttpRequest) -> Pick:
        """Build the answer that carries a decision."""
        settings, others = self._settings, dict[str, str]()
        if self._resolver.any_aliases and settings.subset_hint:
            others = self._other_addresses(request)
        if settings.conformance and (named := request.headers.get(STEERING_HEADER)):
            hint = subset_hint(request.metadata) if settings.subset_hint else None
            allowed = None if hint is None else self._picker.filters.addresses(self._understood(hint))
            destination = ",".join(map(self._resolver.known_as, self._steered(named, allowed)))
        if others:
            destination = ",".join(others.get(address, address) for address in destination.split(","))
        pick = Pick(destination, decision.id)
        if settings.conformance:
            primary = destination.partition(",")[0]
            pick.set_headers[ECHO_HEADER] = f"{SERVED_HEADER}:{primary}"
        if settings.emit_scores:
            names = [others.get(name) or self._resolver.known_as(name) for name in decision.fleet.endpoints]
            pick.scores = endpoint_scores(names, decision.ranking.costs, decision.policy, decision.weights)
        return pick

    def refusal(self, status: int, body: bytes, message: str, rule: str) -> Refusal:
        """Build a refusal in the words asked for, with the reason where capacity is short.

        Args:
            status: HTTP status.
            body: the refusal in the words of the request's API.
            message: the sentence in it.
            rule: what left nobody.
        """
        reason = dropped_reason(status, rule)
        headers = {DROPPED_REASON: reason} if reason else {}
        if self._settings.errors == "api":
            return Refusal(status=status, body=body, headers=headers, details=rule)
        text = error_text(status, message, rule)
        return Refusal(status=status, body=text, content_type=PLAIN_TEXT, headers=headers, details=rule)

    def _other_addresses(self, request: HttpRequest) -> dict[str, str]:
        """Map endpoints that the hint lists by a further address alone to it: the gateway knows no other."""
        hint = subset_hint(request.metadata)
        if hint is None:
            return {}
        others, own = self._resolver.aliases_in(hint), set(self._picker.filters.addresses(hint))
        return {address: other for address, other in others.items() if address not in own}

    def _understood(self, subset: Subset) -> Subset:
        """Add our endpoints that a subset lists by what their names resolve to, or by another address."""
        resolver, names = self._resolver, list[str]()
        if resolver.any_names:
            names += [name for entry in subset.entries for name in resolver.names_of(entry.host, entry.port)]
        if resolver.any_aliases:
            names += resolver.aliases_in(subset)
        return Subset((*subset.entries, *map(Entry.of, names))) if names else subset

    def _steered(self, named: str, allowed: Collection[str] | None) -> tuple[str, ...]:
        """List the endpoints of the pool that the steering header names."""
        steered = self._picker.filters.addresses(self._understood(parse_entries((named,))))
        return tuple(address for address in steered if allowed is None or address in allowed)


def set_models(pick: Pick, decision: Decision) -> None:
    """Name the model that answers, and how many are left to try; not where the request names none.

    A pool that names no models serves any, by the name that the client writes: one that would be more than
    a header's value is left out.
    """
    model = decision.served_model
    if not model or _CONTROL.search(model):
        return
    untried = str(len(decision.untried_models))
    pick.metadata |= {SERVED_MODEL_KEY: model, UNTRIED_KEY: untried}
    pick.response_headers |= {SERVED_MODEL_HEADER: model, UNTRIED_HEADER: untried}


#: APIs with ``stream_options.include_usage``; the others tell the usage of event streams unasked.
USAGE_APIS = frozenset({"openai-chat", "openai-completions"})


def rewrite_bodies(
    pick: Pick, request: HttpRequest, decision: Decision, *, inject_usage: bool = False
) -> None:
    """Let a pick carry the body that its engine understands.

    With another model name the answer must come uncompressed, so that the public name can be put back.

    Args:
        pick: the destination; changed.
        request: as it came.
        decision: what was decided of it.
        inject_usage: ask for the usage of event streams.
    """
    info, served = decision.request, decision.served_model
    renamed = bool(info.model) and served != info.model
    usage = inject_usage and info.stream and info.api in USAGE_APIS
    if not request.body or not (renamed or usage):
        return
    try:
        pick.body = rewrite(request.body, model=served if renamed else None, include_usage=usage)
    except ClientError:
        return  # bytes that are no text, where no parser of ours looks: the engine refuses them
    if renamed:
        if "accept-encoding" in request.headers:
            pick.set_headers["accept-encoding"] = "identity"
        pick.metadata |= {PUBLIC_MODEL_KEY: info.model, SERVED_MODEL_KEY: served}
        pick.rewrite_response = partial(restorer, info.model)
