"""Generated chat traffic with the structure of the ART-Chat windows.

Owns: the recipe of source [T] (points in comments) as parameters and a generator. Pure:
all randomness comes from one numpy Generator made from the given seed.

Shape: one bot pings all the time; every other user, some far busier than others, opens sessions. A session is
a burst of requests: its first prompt is new or starts with a template of the user's, the next ones repeat the
prompt before, extend it by the answer and a new message, or branch off it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.compare.trace import TraceRequest, in_time_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator

_Z90, _Z95 = 1.2816, 1.6449  # normal quantiles
_HISTORY_MESSAGE_TOKENS = 325  # 650 tokens a turn (table 6.2), half of it the answer
_TEMPLATES_PER_USER = 3


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal given by its median and a higher quantile (standard normal ``z`` of that quantile)."""

    p50: float
    high: float
    z: float

    def draw(self, rng: Generator) -> float:
        """One value."""
        sigma = np.log(self.high / self.p50) / self.z
        return float(self.p50 * np.exp(sigma * rng.standard_normal()))


@dataclass(frozen=True, slots=True)
class ArtChat:
    """Parameters; the defaults are the 30-minute window of Apr 5 at full speed.

    Attributes:
        duration_s: sessions start and (in open loop) end within it.
        rate_rps: mean request rate, bot included.
        users: users apart from the bot.
        user_zipf: exponent of how sessions beyond a user's first fall on users.
        bot_share: share of requests that are the bot's pings.
        bot_tokens: length of a ping.
        repeat: weight of sending the last prompt again.
        extend: weight of the answer and a new message appended to the last prompt.
        branch: weight of going on from the first 30-90 % of the last prompt.
        template: weight of a new session that starts with a template; against the three above it also sets
            how long sessions are.
        new: weight of a new session that shares nothing.
        prompt_tokens: length of a session's first prompt.
        message_tokens: tokens that extending or branching adds.
        template_tokens: lowest and highest template length, log-uniform between.
        common_template_share: share of template sessions that use a template of everybody's.
        max_prompt_tokens: prompts are cut here less the answer's limit.
        output_tokens: answer limit of every request but the bot's.
        bot_output_tokens: answer limit of a ping.
        gap_s: time between requests of a session: from send to send in open loop, from the end of the
            answer (think time) in closed loop.
        closed_loop: a session's next request waits for the answer before it.
        nominal_answer_s: what an answer is taken to last when nominal send times are set in closed loop.
        block_tokens: block size of the ids.
    """

    duration_s: float = 1800.0
    rate_rps: float = 4.2
    users: int = 580
    user_zipf: float = 1.0
    bot_share: float = 0.33
    bot_tokens: int = 17
    repeat: float = 0.60
    extend: float = 0.16
    branch: float = 0.04
    template: float = 0.14
    new: float = 0.05
    prompt_tokens: Lognormal = Lognormal(9_200.0, 20_800.0, _Z95)
    message_tokens: Lognormal = Lognormal(330.0, 1_510.0, _Z90)  # mean 670
    template_tokens: tuple[int, int] = (64, 2_000)
    common_template_share: float = 0.15
    max_prompt_tokens: int = 24_000
    output_tokens: int = 128
    bot_output_tokens: int = 16
    gap_s: Lognormal = Lognormal(3.3, 41.0, _Z90)
    closed_loop: bool = False
    nominal_answer_s: float = 2.0
    block_tokens: int = 64

    def at_rate(self, rate_rps: float) -> ArtChat:
        """The same traffic at another rate (more or fewer sessions, each as before)."""
        return replace(self, rate_rps=rate_rps)

    def busier(self, factor: float) -> ArtChat:
        """So many times as many users, each as before."""
        return replace(self, rate_rps=self.rate_rps * factor, users=max(1, round(self.users * factor)))


APR_5 = ArtChat()
APR_6 = ArtChat(rate_rps=4.24, users=606)  # reuse and lengths as on Apr 5 (table 6.2)
# Apr 7 holds more multi-turn traffic: extending is raised and repeating lowered (point 3).
APR_7 = ArtChat(rate_rps=4.8, users=540, repeat=0.46, extend=0.35, branch=0.04, template=0.11, new=0.04)
# Some 25 s on three L40S-class replicas. Arrivals and think times are compressed, lengths hardly. At 14k
# prefill tokens/s each (source [G]) well-placed requests need under half of the fleet,
# badly placed ones nearly all of it.
DEMO = ArtChat(
    duration_s=25.0,
    rate_rps=12.0,
    users=40,
    bot_share=0.20,
    repeat=0.14,
    extend=0.64,
    branch=0.06,
    template=0.11,
    new=0.05,
    prompt_tokens=Lognormal(7_000.0, 16_000.0, _Z95),
    message_tokens=Lognormal(450.0, 1_600.0, _Z90),
    output_tokens=64,
    nominal_answer_s=1.5,
    gap_s=Lognormal(0.7, 2.0, _Z90),
    closed_loop=True,
)


def generate(parameters: ArtChat, seed: int) -> tuple[TraceRequest, ...]:
    """The load for a seed, in time order; equal arguments give equal bytes."""
    return in_time_order(_Generator(parameters, seed).run())


@dataclass(slots=True)
class _Prompt:
    """A prompt as content: ids, length, and where its messages start."""

    ids: list[int]
    tokens: int
    turns: list[int]


class _Generator:
    def __init__(self, parameters: ArtChat, seed: int) -> None:
        self._p = parameters
        self._rng = np.random.default_rng(seed)
        self._next_id = 0
        self._templates: dict[tuple[int, int], _Prompt] = {}

    def run(self) -> list[TraceRequest]:
        """All requests, session by session, the bot last."""
        p, rng = self._p, self._rng
        start_weight = p.template + p.new
        mean_length = (start_weight + p.repeat + p.extend + p.branch) / start_weight
        # Sessions are opened until the rate is met: what the window's end cuts off is made up for.
        wanted = int(rng.poisson(p.rate_rps * p.duration_s * (1.0 - p.bot_share)))
        requests: list[TraceRequest] = []
        for number, user in enumerate(self._users()):
            if len(requests) >= wanted:
                break
            self._session(requests, f"s{number}", user, int(rng.geometric(1.0 / mean_length)))
        requests.extend(self._bot())
        return requests

    def _users(self) -> Iterator[int]:
        """Point 1: everybody opens a session (as far as sessions go), the rest fall on few: Zipf."""
        p = self._p
        yield from (int(user) for user in self._rng.permutation(p.users))
        weights = 1.0 / np.arange(1, p.users + 1) ** p.user_zipf
        bounds = np.cumsum(weights / weights.sum())
        while True:
            yield min(p.users - 1, int(np.searchsorted(bounds, self._rng.random())))

    def _session(self, requests: list[TraceRequest], session: str, user: int, length: int) -> None:
        """Point 2: a burst of requests with lognormal gaps."""
        p = self._p
        service_s = p.nominal_answer_s if p.closed_loop else 0.0
        gaps = [p.gap_s.draw(self._rng) for _ in range(length - 1)]
        # Placed so that it ends inside the window where it can: the rate is level up to the end.
        room_s = p.duration_s - sum(gaps) - service_s * length
        at_s = float(self._rng.uniform(0.0, max(room_s, 0.2 * p.duration_s)))
        prompt = self._first_prompt(user)
        after: int | None = None
        for turn in range(length):
            if turn:
                at_s += service_s + gaps[turn - 1]
                prompt = self._next_prompt(prompt)
            if at_s >= p.duration_s:
                return
            think_ms = gaps[turn - 1] * 1000.0 if after is not None else 0.0
            requests.append(self._request(at_s, session, user, prompt, after=after, think_ms=think_ms))
            if p.closed_loop:
                after = len(requests) - 1

    def _request(
        self, at_s: float, session: str, user: int, prompt: _Prompt, *, after: int | None, think_ms: float
    ) -> TraceRequest:
        return TraceRequest(
            at_ms=round(at_s * 1000.0, 3),
            session=session,
            user=f"u{user}",
            prompt_tokens=prompt.tokens,
            output_tokens=self._p.output_tokens,
            block_ids=tuple(prompt.ids),
            block_tokens=self._p.block_tokens,
            after=after,
            think_ms=round(think_ms, 3),
            turn_starts=tuple(prompt.turns),
        )

    def _first_prompt(self, user: int) -> _Prompt:
        """Points 3 and 4: a template or nothing, then new content up to a lognormal length."""
        p, rng = self._p, self._rng
        room = p.max_prompt_tokens - p.output_tokens
        tokens = p.prompt_tokens.draw(rng)
        while tokens > room:
            tokens = p.prompt_tokens.draw(rng)
        length = max(p.block_tokens, int(tokens))
        if rng.random() < p.template / (p.template + p.new):
            owner = -1 if rng.random() < p.common_template_share else user
            prompt = self._template(owner, int(rng.integers(_TEMPLATES_PER_USER)))
            length = max(length, prompt.tokens + p.block_tokens)
        else:
            prompt = _Prompt([], 0, [])
            self._grow(prompt, min(p.template_tokens[0], length // 2))
        system = prompt.tokens
        history = max(1, (length - system) // _HISTORY_MESSAGE_TOKENS)
        history -= 1 - history % 2  # the last message is the user's
        self._grow(prompt, length)
        prompt.turns = [system + (length - system) * i // history for i in range(history)]
        return prompt

    def _template(self, owner: int, number: int) -> _Prompt:
        known = self._templates.get((owner, number))
        if known is None:
            low, high = self._p.template_tokens
            tokens = round(float(np.exp(self._rng.uniform(np.log(low), np.log(high)))))
            known = _Prompt([], 0, [])
            # Whole blocks, so that what comes after a template never stands in a block shared with it.
            self._grow(known, max(1, tokens // self._p.block_tokens) * self._p.block_tokens)
            self._templates[owner, number] = known
        return _Prompt(list(known.ids), known.tokens, [])

    def _next_prompt(self, last: _Prompt) -> _Prompt:
        """Point 3: repeat, extend or branch; what would not fit repeats."""
        p, rng = self._p, self._rng
        kind = rng.random() * (p.repeat + p.extend + p.branch)
        added = max(8, int(p.message_tokens.draw(rng)))
        room = p.max_prompt_tokens - p.output_tokens
        if kind < p.extend:
            tokens = last.tokens + p.output_tokens + added
            if tokens > room:
                return last
            prompt = _Prompt(list(last.ids), last.tokens, list(last.turns))
            prompt.turns += [last.tokens, last.tokens + p.output_tokens]
            self._grow(prompt, tokens)
            return prompt
        if kind < p.extend + p.branch:
            cut = max(p.block_tokens, int(last.tokens * rng.uniform(0.3, 0.9)))
            # A branch replaces a whole message of the user's, from a block's edge on.
            kept = cut // p.block_tokens
            start = kept * p.block_tokens
            turns = [turn for turn in last.turns if turn < start]
            if len(turns) % 2 == 0:
                turns.append(start)
            prompt = _Prompt(last.ids[:kept], start, turns)
            self._grow(prompt, min(start + added, room))
            return prompt
        return last

    def _grow(self, prompt: _Prompt, tokens: int) -> None:
        """Append new content up to a length; a partial last block goes on under its own id."""
        blocks = -(-tokens // self._p.block_tokens)
        missing = blocks - len(prompt.ids)
        prompt.ids.extend(range(self._next_id, self._next_id + missing))
        self._next_id += max(0, missing)
        prompt.tokens = tokens

    def _bot(self) -> list[TraceRequest]:
        """Point 1: one user with a fixed text of a few tokens, each ping a session of its own."""
        p, rng = self._p, self._rng
        count = int(rng.poisson(p.rate_rps * p.duration_s * p.bot_share))
        prompt = _Prompt([], 0, [])
        self._grow(prompt, p.bot_tokens)
        return [
            TraceRequest(
                at_ms=round(float(at_s) * 1000.0, 3),
                session=f"bot-{number}",
                user="bot",
                prompt_tokens=p.bot_tokens,
                output_tokens=p.bot_output_tokens,
                block_ids=tuple(prompt.ids),
                block_tokens=p.block_tokens,
            )
            for number, at_s in enumerate(np.sort(rng.uniform(0.0, p.duration_s, size=count)))
        ]
