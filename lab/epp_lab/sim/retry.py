"""A window of questions that are asked again until they are answered rightly.

Owns the questions' state: which attempt is under way, which models have failed. So many questions at a time;
a further attempt follows a wrong answer at once. Answers are given: decoding is greedy, so that a model's
answer to a question is right or wrong once and for all. What goes to the client and comes back is the retry
protocol of the live picker: the model that served, how many are untried, those that were tried.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp_lab.sim.fleet import PUBLIC_MODEL, FleetSim, Sender
from epp_lab.sim.loop import Rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.policies.base import Policy
    from epp.schedule.decision import Decision
    from epp.types import RequestInfo, SuccessRates
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.engine_class import EngineClass
    from epp_lab.sim.results import SimResult
    from epp_lab.sim.scenario import FleetSpec, WindowOptions

#: Uncontended requests that rates are learned from before a window, as a deployment measures offline.
_MEASURED_TOKENS = (2048, 4096, 8192, 16_384, 32_768, 65_536)
_MEASURED_TIMES = 5


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        language: of its prompt.
        right: models that answer it rightly.
    """

    language: str
    right: frozenset[str]


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """What came of a question.

    Attributes:
        ended_ms: from the beginning of the first attempt to the end of each.
        models: who served the attempts, in order.
        correct: whether the last was right.
        cached_tokens: prompt tokens that caches gave, over all attempts.
    """

    ended_ms: tuple[float, ...]
    models: tuple[str, ...]
    correct: bool
    cached_tokens: int

    def after(self, attempts: int) -> tuple[float, bool]:
        """Return the time spent by the end of so many attempts, in ms, and whether the answer was there."""
        made = min(attempts, len(self.ended_ms))
        return self.ended_ms[made - 1], self.correct and made == len(self.ended_ms)


def lone_first_token_ms(cls: EngineClass, tokens: int) -> float:
    """Return the time to first token of a prompt that is alone on an engine."""
    batches = -(-tokens // cls.chunk_tokens)
    return cls.arrival_delay_ms(tokens) + cls.prefill_ms_per_token * tokens + batches * cls.prefill_base_ms


class RetrySim(FleetSim):
    """Questions, each asked up to ``attempts`` times.

    Args:
        questions: in the order in which they are asked.
        requests: ``attempts`` of each question, one after the other, with the same prompt.
        spec: the fleet; every replica names its model.
        policy: prices endpoints.
        attempts: most attempts; fewer where the picker tells that no model is left to try.
        at_once: questions under way at once.
        success_rates: capability table of the picker.
        weights: the policy's weights that differ from their defaults.
        seed: of network and draws.
        options: as `FleetSim`.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        requests: Sequence[TraceRequest],
        spec: FleetSpec,
        policy: Policy,
        *,
        attempts: int,
        at_once: int,
        success_rates: SuccessRates,
        weights: Mapping[str, float],
        seed: int,
        options: WindowOptions,
    ) -> None:
        self._questions, self._attempts, self._at_once = questions, attempts, at_once
        self._models = {replica.address: replica.model for replica in spec.replicas}
        self._waiting = deque(range(len(questions)))
        self._begun_ms: dict[int, float] = {}
        self._served: list[list[str]] = [[] for _ in questions]
        self._ended_ms: list[list[float]] = [[] for _ in questions]
        self._cached = [0] * len(questions)
        self._is_left = [True] * len(questions)
        self._asked: dict[int, QuestionOutcome] = {}
        super().__init__(requests, spec, policy, weights=weights, seed=seed, options=options)
        self._scheduler.datastore.capability.replace(success_rates)
        self._measure()
        self.loop.at(self.start_ms, Rank.ARRIVAL, self._begin)

    def ask(self) -> list[QuestionOutcome]:
        """Ask everything and return what came of each question, in order."""
        self.run()
        return [self._asked[question] for question in range(len(self._questions))]

    @property
    def unfinished(self) -> bool:
        """Whether a question is still open."""
        return len(self._asked) < len(self._questions)

    def over(self, result: SimResult) -> None:
        """Note who answered an attempt, `""` when it failed."""
        question = result.index // self._attempts
        self._served[question].append(self._models.get(result.endpoint, ""))
        self._cached[question] += result.cached_tokens
        super().over(result)

    def answered(self, index: int) -> None:
        """Go on with the question, or with the next one."""
        question, now_ms = index // self._attempts, self.loop.now_ms
        served, ended_ms = self._served[question], self._ended_ms[question]
        ended_ms.append(now_ms - self._begun_ms[question])
        correct = served[-1] in self._questions[question].right
        if correct or len(served) >= self._attempts or not self._is_left[question]:
            cached = self._cached[question]
            self._asked[question] = QuestionOutcome(tuple(ended_ms), tuple(served), correct, cached)
            self._next_question()
        else:
            self._send(index + 1, now_ms)

    def decided(self, decision: Decision) -> None:
        """Note whether a model is left to try."""
        index = int(decision.id.removeprefix("r"))
        self._is_left[index // self._attempts] = bool(decision.untried_models)

    def _build_client(self) -> Sender:
        return self

    def _begin(self) -> None:
        for _ in range(self._at_once):
            self._next_question()

    def _next_question(self) -> None:
        if self._waiting:
            question = self._waiting.popleft()
            self._begun_ms[question] = self.loop.now_ms
            self._send(question * self._attempts, self.loop.now_ms)

    def _info(self, index: int) -> RequestInfo:
        question = index // self._attempts
        return replace(
            super()._info(index),
            model=PUBLIC_MODEL,
            language=self._questions[question].language,
            tried_models=tuple(sorted(set(self._served[question]))),
        )

    def _measure(self) -> None:
        """Set rates as offline measurements find them, one request at a time on every replica."""
        rates, datastore = self._scheduler.datastore.rates, self._scheduler.datastore
        for address, replica in self.replicas.items():
            slot, cls = datastore.slot_of(address), replica.spec.engine_class
            if slot is None:
                continue
            for tokens in _MEASURED_TOKENS * _MEASURED_TIMES:
                ttft_ms = lone_first_token_ms(cls, tokens)
                rates.observe_prefill(slot, ended_s=0.0, requests=1.0, tokens=tokens, ttft_ms=ttft_ms)
                for beside in (0, 1, 3):
                    itl_ms = cls.decode_step_ms(1 + beside)
                    rates.observe_decode(slot, ended_s=0.0, beside=beside, itl_ms=itl_ms)
