"""What a gateway asks for and is told beside the pick, in its own words: the endpoint picker protocol.

Owns the protocol's options: the subset hint, scores, the conformance suite's steering, and the words of
refusals. Decides nothing. Sources: endpoint picker protocol (proposal 004); llm-d's error texts [E].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.apis.error_bodies import openai_error
from epp.apis.registry import error_words
from epp.extproc.mutate import SERVED_HEADER
from epp.extproc.types import HttpRequest, Pick, Refusal
from epp.llmd.words import DROPPED_REASON, PLAIN_TEXT, dropped_reason, endpoint_scores, error_text
from epp.schedule.subset import Entry, Subset, parse_entries, subset_hint

if TYPE_CHECKING:
    from epp.config.schema import Protocol
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.server.resolve import Resolver

#: The conformance suite names endpoints by this header, in the order in which they are to be tried.
STEERING_HEADER = "test-epp-endpoint-selection"
#: Its echo server answers with the headers that this one lists.
ECHO_HEADER = "x-echo-set-header"


class Gateway:
    """The protocol's options, applied.

    Args:
        settings: which of them are on.
        picker: knows the pool.
        resolver: host names to what Envoy knows.
    """

    def __init__(self, settings: Protocol, picker: Picker, resolver: Resolver) -> None:
        self._settings, self._picker, self._resolver = settings, picker, resolver

    def subset(self, request: HttpRequest) -> Subset | None:
        """The endpoints that the gateway allows, None for any.

        Under the conformance switch the first endpoint of the steering header is the only one.
        """
        hint = self._hint(request)
        steered = self._steered(request, hint)
        if steered is None:
            return hint
        return Subset(tuple(Entry.of(address) for address in steered[:1]))

    def pick(self, decision: Decision, destination: str, request: HttpRequest) -> Pick:
        """The answer that tells of a decision."""
        settings, others = self._settings, self._other_addresses(request)
        if settings.conformance and request.headers.get(STEERING_HEADER):
            steered = self._steered(request, self._hint(request)) or ()
            destination = ",".join(self._resolver.known_as(address) for address in steered)
        if others:
            destination = ",".join(others.get(address, address) for address in destination.split(","))
        pick = Pick(destination, decision.id)
        if settings.conformance:
            primary = destination.partition(",")[0]
            pick = replace(pick, set_headers={ECHO_HEADER: f"{SERVED_HEADER}:{primary}"})
        if settings.emit_scores:
            names = [others.get(name) or self._resolver.known_as(name) for name in decision.fleet.endpoints]
            scores = endpoint_scores(names, decision.ranking.costs, decision.policy, decision.weights)
            pick = replace(pick, scores=scores)
        return pick

    def refusal(self, status: int, body: bytes, message: str, rule: str) -> Refusal:
        """A refusal in the words asked for, with the reason where a request is dropped for want of capacity.

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

    def too_large(self, request: HttpRequest, limit_bytes: int) -> Refusal:
        """The refusal of a body over the limit, in the words of the path's API."""
        message = f"request body is larger than {limit_bytes} bytes"
        words = error_words(request.path) or openai_error
        return self.refusal(413, words(413, message, None), message, "epp_body_too_large")

    def _hint(self, request: HttpRequest) -> Subset | None:
        hint = self._listed(request)
        return None if hint is None else self._understood(hint)

    def _listed(self, request: HttpRequest) -> Subset | None:
        """The hint as the gateway wrote it, None when there is none or it is not to be obeyed."""
        return subset_hint(request.metadata) if self._settings.subset_hint else None

    def _other_addresses(self, request: HttpRequest) -> dict[str, str]:
        """Endpoints that the hint lists by a further address alone: the gateway knows them by that one."""
        hint = self._listed(request) if self._resolver.any_aliases else None
        if hint is None:
            return {}
        others = self._resolver.aliases_in(hint)
        own = set(self._picker.addresses(hint)) if others else set()
        return {address: other for address, other in others.items() if address not in own}

    def _understood(self, subset: Subset) -> Subset:
        """A subset with our endpoints that it lists by what their names resolve to, or by another address."""
        resolver, names = self._resolver, list[str]()
        if resolver.any_names:
            names += [name for entry in subset.entries for name in resolver.names_of(entry.host, entry.port)]
        if resolver.any_aliases:
            names += resolver.aliases_in(subset)
        return Subset((*subset.entries, *map(Entry.of, names))) if names else subset

    def _steered(self, request: HttpRequest, hint: Subset | None) -> tuple[str, ...] | None:
        """Endpoints of the pool that the steering header names, None when it does not steer."""
        named = request.headers.get(STEERING_HEADER, "")
        if not (self._settings.conformance and named):
            return None
        steered = self._picker.addresses(self._understood(parse_entries((named,))))
        if hint is None:
            return steered
        allowed = set(self._picker.addresses(hint))
        return tuple(address for address in steered if address in allowed)
