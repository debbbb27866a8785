"""The use case: a measured request in, a decision with its reservation out, and its later reports.

Owns the requests in flight (decision id -> what must be given back) and composes filter, signals, policy,
draw and reservation into one synchronous step: between pricing and reserving nothing else can run, so a burst
cannot herd. The same object serves live, in the simulator and in replays. It takes ``now_s`` and never asks
for the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.apis.usage import NO_USAGE, Usage
from epp.policies.base import Need, Ties
from epp.policies.registry import params_of
from epp.schedule.arms import Arms
from epp.schedule.capable import success_of, words_of
from epp.schedule.decision import Basis, Decision, Source
from epp.schedule.feedback import DONE, is_absurd, learn_from, with_cached
from epp.schedule.filters import Eligibility, Wants
from epp.schedule.in_flight import Ask, InFlight, outcome_of, sent_of
from epp.schedule.select import select
from epp.types import PREFIX_KEY_TOKENS, RequestView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from epp.apis.types import MeasuredPrompt
    from epp.policies.base import Policy
    from epp.prefix_cache.index import PrefixMatch
    from epp.schedule.decision import Outcome
    from epp.schedule.filters import Candidates
    from epp.schedule.subset import Subset
    from epp.schedule.weights import WeightBook
    from epp.signals.endpoint import Endpoint
    from epp.signals.fleet import Fleet
    from epp.signals.paths import Travelled


__all__ = ["Ask", "Picker", "PickerSettings"]


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """Constants of a picker; see `epp.config.schema.PolicySection` for their meaning."""

    tie_band: float = 0.01
    seed: int = 0
    fallbacks: int = 2
    warmup_s: float = 30.0


class Picker:
    """Decides and remembers what it promised.

    Args:
        fleet: the signals.
        policy: prices endpoints.
        balance: used instead where the policy needs a prompt and there is none to read.
        weights: the weights in force.
        settings: constants.
        new_id: makes decision ids.
        name_block: a block's name as it may be recorded; live pickers pass the keyed one of their hasher.
        learn: told of a model, of canonical bytes and of the tokens that an engine counted in them.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        policy: Policy,
        balance: Policy,
        weights: WeightBook,
        settings: PickerSettings,
        new_id: Callable[[], str],
        name_block: Callable[[int], str] = "{:016x}".format,
        learn: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.fleet = fleet
        self.policy = policy
        self._params = params_of(policy)
        self.weights = weights
        self._balance = balance
        self._settings = settings
        self._new_id = new_id
        self._name_block = name_block
        self._learn = learn
        self._eligibility = Eligibility()
        self._arms = Arms(weights, name_block)
        self._in_flight: dict[str, InFlight] = {}
        self._ended: dict[str, InFlight] = {}
        self._sequence = 0

    def set_pool(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        """Replace the pool; what is known of endpoints that stay is kept."""
        self.fleet.apply(endpoints, now_s)
        self._eligibility.set_pool(self.fleet.members)

    def replace_policy(self, policy: Policy) -> None:
        """From the next decision on the policy is this one: the same, with other parameters.

        Raises:
            ValueError: it is another policy, whose weights these are not.
        """
        if policy.name != self.policy.name:
            raise ValueError(f"the weights in force are those of {self.policy.name}, not of {policy.name}")
        self.policy, self._params = policy, params_of(policy)

    def addresses(self, subset: Subset) -> tuple[str, ...]:
        """Endpoints of the pool that a subset names, in its order."""
        return self._eligibility.addresses(subset)

    @property
    def names_models(self) -> bool:
        """Whether an endpoint's eligibility depends on the model or on the length of a request."""
        return self._eligibility.names_models

    @property
    def in_flight(self) -> int:
        """Requests decided and not ended."""
        return len(self._in_flight)

    def has_in_flight(self, decision_id: str) -> bool:
        """Whether it was decided here and has not ended."""
        return decision_id in self._in_flight

    def pick(self, ask: Ask, now_s: float, wall_s: float) -> Decision:
        """Choose an endpoint and reserve it.

        Raises:
            NoEndpointError: nobody is eligible.
        """
        settings, fleet = self._settings, self.fleet
        tokens = ask.prompt.prompt_tokens if ask.prompt else 0
        wants = Wants(ask.model, tokens + (ask.max_output_tokens or 0), ask.regions, ask.subset)
        found = self._eligibility.candidates(wants, fleet.healthy(now_s), fleet.retry_after.until_s(now_s))
        match = fleet.index.match(ask.prompt) if ask.prompt else None
        cached = match.cached_tokens(found.slots) if match else None
        success = success_of(fleet.capability, ask, found, tokens)
        view = fleet.view(found.slots, cached, tokens, now_s, models=found.served_models, success=success)
        request = self._request(ask, tokens, match, now_s, found)
        policy, basis = self._policy_for(ask)
        weights, arm = self._arms.choose(ask, wall_s) if policy is self.policy else (self.weights.current, "")
        values = weights.values if policy is self.policy else {}
        ranking = policy.rank(request, view, values, settings.seed)
        if tokens:
            fleet.first_tokens.observe(ask.model, ranking.least_first_token_ms)
        shares = self._shares(found.slots, now_s)
        band = settings.tie_band if policy.ties is Ties.BAND else 0.0
        selection = select(
            ranking.costs,
            shares,
            view.endpoints,
            tie_band=band,
            fallbacks=settings.fallbacks,
            seed=settings.seed,
            key=request.decision_id,
            served_models=found.served_models,
        )
        decision = Decision(
            id=request.decision_id,
            at_wall_s=wall_s,
            api=ask.api,
            basis=basis,
            policy=policy.name,
            params=self._params if policy is self.policy else {},
            request=request,
            fleet=view,
            weights=values,
            weights_version=weights.version,
            seed=settings.seed,
            tie_band=band,
            ranking=ranking,
            shares=shares,
            chosen=selection.chosen,
            fallbacks=selection.fallbacks,
            tied=selection.tied,
            held_back=selection.held_back,
            arm=arm,
            excluded=found.excluded,
            text_bytes=ask.text_bytes,
            served_models=found.served_models,
        )
        self._reserve(decision, int(found.slots[selection.chosen]), ask, now_s)
        return decision

    def _request(
        self, ask: Ask, tokens: int, match: PrefixMatch | None, now_s: float, found: Candidates
    ) -> RequestView:
        task, tried = words_of(self.fleet.capability, ask, found)
        return RequestView(
            decision_id=self._new_id(),
            model=ask.model,
            prompt_tokens=tokens,
            body_bytes=ask.body_bytes,
            max_output_tokens=ask.max_output_tokens,
            affinity_key=ask.affinity_key,
            prefix_key=self._prefix_key(ask.prompt),
            sequence=self._sequence,
            expected_output_tokens=self.fleet.answers.expected(ask.model, ask.max_output_tokens),
            prefix_sharing=self._sharing(ask.prompt, match, now_s),
            usual_first_token_ms=self.fleet.first_tokens.usual_ms(ask.model),
            language=ask.language,
            task=task,
            tried_models=tried,
        )

    def _sharing(self, prompt: MeasuredPrompt | None, match: PrefixMatch | None, now_s: float) -> float:
        if prompt is None or match is None or not match.depth_blocks:
            return 0.0
        return self.fleet.popularity.touch(prompt.blocks[match.depth_blocks - 1], now_s)

    def _prefix_key(self, prompt: MeasuredPrompt | None) -> str:
        if prompt is None or not prompt.blocks:
            return ""
        covered = max(int(PREFIX_KEY_TOKENS / prompt.block_tokens), 1)
        return self._name_block(prompt.blocks[min(covered, len(prompt.blocks)) - 1])

    def _policy_for(self, ask: Ask) -> tuple[Policy, Basis]:
        if ask.opaque and Need.PROMPT in self.policy.needs:
            return self._balance, Basis.BALANCE
        return self.policy, Basis.POLICY

    def _shares(self, slots: NDArray[np.intp], now_s: float) -> NDArray[np.float64] | None:
        shares = self.fleet.warm_share(now_s, self._settings.warmup_s)
        if shares is None:
            return None
        ours = shares[slots]
        return ours if bool((ours < 1.0).any()) else None

    def _reserve(self, decision: Decision, slot: int, ask: Ask, now_s: float) -> None:
        self._sequence += 1
        seen = decision.fleet.at(decision.chosen)
        sent = sent_of(decision, seen, self.fleet.paths.started(slot, now_s))
        self.fleet.retry_after.sent(slot, decision.id, now_s)
        prompt_tokens = decision.request.prompt_tokens
        self.fleet.ledger.reserve(
            decision.id,
            slot,
            prompt_tokens,
            # A hit that the engine has lost is work that the next request waits for, too.
            round(self.fleet.calibration.to_prefill(slot, prompt_tokens, seen.cached_tokens)),
            now_s,
            answer_tokens=decision.request.expected_output_tokens,
        )
        distance = math.nan if ask.prompt is None else self.fleet.index.insert(slot, ask.prompt)
        self._in_flight[decision.id] = InFlight(
            slot, decision.endpoint, ask, now_s, seen.cached_tokens, distance, sent
        )

    def first_token(self, decision_id: str, now_s: float, source: Source = Source.FIRST_TOKEN) -> bool:
        """The first token came; False when the decision is unknown, ended, or had its first token before."""
        entry = self._in_flight.get(decision_id)
        if entry is None or not math.isnan(entry.first_token_s):
            return False
        entry.first_token_s, entry.first_source = now_s, source
        self.fleet.ledger.first_token(decision_id, now_s)
        return True

    def response_started(self, decision_id: str, status: int, served: str = "") -> str:
        """Note response headers, of ``served`` if told; who answers, "" for an unknown or ended decision."""
        entry = self._in_flight.get(decision_id)
        if entry is None:
            return ""
        entry.status = status or None
        self._served(decision_id, entry, served)
        return entry.served or entry.endpoint

    def observed(
        self,
        decision_id: str,
        *,
        usage: Usage = NO_USAGE,
        chunks: int | None = None,
        response_bytes: int | None = None,
        last_chunk_s: float = math.nan,
        streamed: bool | None = None,
    ) -> bool:
        """What the stream showed of the answer; False when the decision is unknown or ended.

        Args:
            decision_id: the decision.
            usage: as `usage` takes it.
            chunks: pieces of the answer that were not empty.
            response_bytes: their bytes.
            last_chunk_s: when the last of them came.
            streamed: it was an event stream; None where nobody told, then what the client asked for counts.
        """
        entry = self._in_flight.get(decision_id)
        if entry is None:
            return False
        entry.chunks, entry.response_bytes, entry.last_chunk_s = chunks, response_bytes, last_chunk_s
        entry.streamed = streamed
        if usage != NO_USAGE:
            self.usage(decision_id, usage)
        return True

    def served(self, decision_id: str, address: str) -> None:
        """Who really answers or answered; an unknown decision is fine."""
        entry = self._known(decision_id)
        if entry is not None:
            self._served(decision_id, entry, address)

    def _served(self, decision_id: str, entry: InFlight, address: str) -> None:
        """Another endpoint than was thought has the request, and its prompt in the cache from now on."""
        if not address or address == (entry.served or entry.endpoint):
            entry.served = entry.served or address
            return
        entry.served = address
        slot = self.fleet.slot_of(address)
        if slot is None:
            return
        uncached = 0.0
        if entry.prompt is not None:
            cached = float(self.fleet.index.match(entry.prompt).cached_tokens(np.array([slot]))[0])
            uncached = self.fleet.calibration.to_prefill(slot, entry.prompt.prompt_tokens, cached)
            self.fleet.index.insert(slot, entry.prompt)
        self.fleet.ledger.move(decision_id, slot, round(uncached))

    def travelled(self, decision_id: str, told: Travelled) -> None:
        """What its connection was like; an unknown decision is fine."""
        entry = self._known(decision_id)
        if entry is not None:
            entry.travelled = told

    def usage(self, decision_id: str, usage: Usage) -> bool:
        """Take the engine's count, once into the prefix index; False when absurd, unknown or settled."""
        entry, fleet = self._known(decision_id), self.fleet
        if entry is None:
            return False
        if is_absurd(entry, usage, fleet):
            entry.usage_refused = True
            return False
        entry.usage = usage
        # Not of a restarted engine, nor of another one that took its slot while the request was elsewhere.
        current = fleet.address_of(entry.slot) == entry.endpoint
        if decision_id in self._in_flight:
            current = current and fleet.ledger.live(decision_id)
        elsewhere = bool(entry.served) and entry.served != entry.endpoint  # nothing was foretold of that one
        if entry.prompt is not None and current and not elsewhere:
            cached = with_cached(entry.slot, entry.ask.api, usage, fleet).cached_tokens
            if cached is not None and not entry.confirmed:
                entry.confirmed = True
                fleet.index.confirm(entry.slot, entry.expected_tokens, cached, entry.distance_tokens)
            if usage.completion_tokens is not None:
                fleet.index.note_answer(entry.slot, entry.prompt, usage.completion_tokens)
        return True

    def _known(self, decision_id: str) -> InFlight | None:
        return self._in_flight.get(decision_id) or self._ended.get(decision_id)

    def end(
        self, decision_id: str, cause: str, now_s: float, *, report_follows: bool = False
    ) -> Outcome | None:
        """The request is over, however it ended; None when the decision is unknown or ended before.

        With ``report_follows`` the decision is remembered, for `usage`, until it is settled.
        """
        entry = self._in_flight.pop(decision_id, None)
        if entry is None:
            return None
        self.fleet.ledger.end(decision_id, now_s)
        outcome = outcome_of(decision_id, entry, cause, now_s)
        slot = self.fleet.slot_of(outcome.where)
        if slot is not None and cause in DONE:
            if outcome.where != entry.endpoint:
                self.fleet.paths.started(slot, now_s)  # it had a connection there, the idle one if any was
            self.fleet.paths.ended(slot, now_s)
        if report_follows:
            self._ended[decision_id] = entry
        else:
            learn_from(entry, outcome, self.fleet, self._learn)
        return outcome

    def settle(self, outcome: Outcome) -> None:
        """All that will ever be known of a request; unknown ones are fine."""
        entry = self._ended.pop(outcome.id, None)
        if entry is not None:
            learn_from(entry, outcome, self.fleet, self._learn)

    def expire(self, now_s: float) -> list[Outcome]:
        """End the requests whose leases outlived their time, or gave way to newer ones."""
        ledger = self.fleet.ledger
        outcomes = []
        for cause, lease_ids in (("evicted", ledger.take_pushed_out()), ("expired", ledger.expire(now_s))):
            for lease_id in lease_ids:
                entry = self._in_flight.pop(lease_id, None)
                if entry is not None:
                    outcomes.append(outcome_of(lease_id, entry, cause, now_s))
        return outcomes
