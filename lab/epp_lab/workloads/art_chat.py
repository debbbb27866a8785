"""Generated chat traffic with the structure of the ART-Chat windows.

The recipe is that of source [T] (points in comments) as parameters and a generator. Pure: all randomness
comes from one numpy Generator made from the given seed.

Shape: one bot pings all the time; every other user, some far busier than others, opens sessions. A session is
a burst of requests: its first prompt is new or starts with a template of the user's, the next ones repeat the
prompt before, extend it by the answer and a new message, or branch off it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp_lab.workloads.content import Z90, Z95, Content, Lognormal, Prompt, Zipf, arrivals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp_lab.compare.trace import TraceRequest

_HISTORY_MESSAGE_TOKENS = 325  # 650 tokens a turn (table 6.2), half of it the answer
_TEMPLATES_PER_USER = 3

#: Length of a ping.
_BOT_TOKENS = 17
#: Lowest and highest template length, log-uniform between.
_TEMPLATE_TOKENS = (64, 2_000)
#: Share of template sessions that use a template of everybody's.
_COMMON_TEMPLATE_SHARE = 0.15
#: Answer limit of a ping.
_BOT_OUTPUT_TOKENS = 16
#: Block size of the ids.
_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ArtChat:
    """Parameters; the defaults are the 30-minute window of Apr 5 at full speed.

    Attributes:
        duration_s: sessions start and (in open loop) end within it.
        rate_rps: mean request rate, bot included.
        users: users apart from the bot.
        bot_share: share of requests that are the bot's pings.
        repeat: weight of sending the last prompt again.
        extend: weight of the answer and a new message appended to the last prompt.
        branch: weight of going on from the first 30-90 % of the last prompt.
        template: weight of a new session that starts with a template; against the three above it also sets
            how long sessions are.
        new: weight of a new session that shares nothing.
        prompt_tokens: length of a session's first prompt.
        message_tokens: tokens that extending or branching adds.
        max_prompt_tokens: prompts are cut here less the answer's limit.
        output_tokens: answer limit that clients send; all answers but the bot's are that long.
        gap_s: time between requests of a session: from send to send in open loop, from the end of the
            answer (think time) in closed loop.
        closed_loop: a session's next request waits for the answer before it.
        nominal_answer_s: what an answer is taken to last when nominal send times are set in closed loop.
    """

    duration_s: float = 1800.0
    rate_rps: float = 4.2
    users: int = 580
    bot_share: float = 0.33
    repeat: float = 0.60
    extend: float = 0.16
    branch: float = 0.04
    template: float = 0.14
    new: float = 0.05
    prompt_tokens: Lognormal = Lognormal(9_200.0, 20_800.0, Z95)  # noqa: RUF009 - frozen
    message_tokens: Lognormal = Lognormal(330.0, 1_510.0, Z90)  # noqa: RUF009 - frozen; mean 670
    max_prompt_tokens: int = 24_000
    output_tokens: int = 128
    gap_s: Lognormal = Lognormal(3.3, 41.0, Z90)  # noqa: RUF009 - frozen
    closed_loop: bool = False
    nominal_answer_s: float = 2.0


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
    prompt_tokens=Lognormal(7_000.0, 16_000.0, Z95),
    message_tokens=Lognormal(450.0, 1_600.0, Z90),
    output_tokens=64,
    nominal_answer_s=1.5,
    gap_s=Lognormal(0.7, 2.0, Z90),
    closed_loop=True,
)
# A minute of the same for engines on a CPU: lengths an eighth, answers half.
SMALL = replace(
    DEMO,
    duration_s=60.0,
    rate_rps=4.0,
    users=48,
    prompt_tokens=Lognormal(900.0, 1_800.0, Z95),
    message_tokens=Lognormal(120.0, 400.0, Z90),
    max_prompt_tokens=3_000,
    output_tokens=32,
)


def generate(parameters: ArtChat, seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order; equal arguments give equal bytes."""
    return _Generator(parameters, seed).run()


class _Generator:
    def __init__(self, parameters: ArtChat, seed: int) -> None:
        self._p = parameters
        self._rng = np.random.default_rng(seed)
        self._content = Content(_BLOCK_TOKENS)
        self._templates: dict[tuple[int, int], Prompt] = {}

    def run(self) -> tuple[TraceRequest, ...]:
        """Send all requests, session by session, the bot last."""
        p, rng = self._p, self._rng
        start_weight = p.template + p.new
        mean_length = (start_weight + p.repeat + p.extend + p.branch) / start_weight
        # Sessions are opened until the rate is met: what the window's end cuts off is made up for.
        wanted = int(rng.poisson(p.rate_rps * p.duration_s * (1.0 - p.bot_share)))
        for number, user in enumerate(self._users()):
            if len(self._content.requests) >= wanted:
                break
            self._session(f"s{number}", user, int(rng.geometric(1.0 / mean_length)))
        self._bot()
        return self._content.in_order()

    def _users(self) -> Iterator[int]:
        """Point 1: everybody opens a session (as far as sessions go), the rest fall on few: Zipf."""
        p = self._p
        yield from (int(user) for user in self._rng.permutation(p.users))
        further = Zipf(p.users)
        while True:
            yield further.draw(self._rng)

    def _session(self, session: str, user: int, length: int) -> None:
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
            sent = self._content.send(
                prompt,
                at_s=at_s,
                session=session,
                user=f"u{user}",
                output_tokens=p.output_tokens,
                max_output_tokens=p.output_tokens,
                after=after,
                think_s=gaps[turn - 1] if after is not None else 0.0,
            )
            after = sent if p.closed_loop else None

    def _first_prompt(self, user: int) -> Prompt:
        """Points 3 and 4: a template or nothing, then new content up to a lognormal length."""
        p, rng = self._p, self._rng
        room = p.max_prompt_tokens - p.output_tokens
        length = max(_BLOCK_TOKENS, int(p.prompt_tokens.draw_between(rng, 0.0, room)))
        if rng.random() < p.template / (p.template + p.new):
            owner = -1 if rng.random() < _COMMON_TEMPLATE_SHARE else user
            prompt = self._template(owner, int(rng.integers(_TEMPLATES_PER_USER)))
            length = max(length, prompt.tokens + _BLOCK_TOKENS)
        else:
            prompt = self._content.fresh(min(_TEMPLATE_TOKENS[0], length // 2))
        system = prompt.tokens
        history = max(1, (length - system) // _HISTORY_MESSAGE_TOKENS)
        history -= 1 - history % 2  # the last message is the user's
        turns = tuple(system + (length - system) * i // history for i in range(history))
        return self._content.grown(prompt, length, turns)

    def _template(self, owner: int, number: int) -> Prompt:
        known = self._templates.get((owner, number))
        if known is None:
            low, high = _TEMPLATE_TOKENS
            tokens = round(float(np.exp(self._rng.uniform(np.log(low), np.log(high)))))
            # Whole blocks, so that what comes after a template never stands in a block shared with it.
            known = self._content.fresh(max(1, tokens // _BLOCK_TOKENS) * _BLOCK_TOKENS)
            self._templates[owner, number] = known
        return known

    def _next_prompt(self, last: Prompt) -> Prompt:
        """Point 3: repeat, extend or branch; what would not fit repeats."""
        p, rng = self._p, self._rng
        kind = rng.random() * (p.repeat + p.extend + p.branch)
        added = max(8, int(p.message_tokens.draw(rng)))
        room = p.max_prompt_tokens - p.output_tokens
        if kind < p.extend:
            tokens = last.tokens + p.output_tokens + added
            if tokens > room:
                return last
            return self._content.grown(last, tokens, (last.tokens, last.tokens + p.output_tokens))
        if kind < p.extend + p.branch:
            # A branch replaces a whole message of the user's, from a block's edge on.
            trunk = self._content.cut(last, max(1, int(last.tokens * rng.uniform(0.3, 0.9)) // _BLOCK_TOKENS))
            own = (trunk.tokens,) if len(trunk.turns) % 2 == 0 else ()
            return self._content.grown(trunk, min(trunk.tokens + added, room), own)
        return last

    def _bot(self) -> None:
        """Point 1: one user with a fixed text of a few tokens, each ping a session of its own."""
        p, prompt = self._p, self._content.fresh(_BOT_TOKENS)
        mean = p.rate_rps * p.duration_s * p.bot_share
        for number, at_s in enumerate(arrivals(self._rng, mean, 0.0, p.duration_s)):
            self._content.send(
                prompt,
                at_s=at_s,
                session=f"bot-{number}",
                user="bot",
                output_tokens=_BOT_OUTPUT_TOKENS,
                max_output_tokens=p.output_tokens,
            )
