"""Reader of agent sessions (one session a line), closed loop.

Owns: the format of the Claude Code sessions of callanjfox/kv-cache-tester as compacted in
source [T], sub-agents included. Must not know: files, sockets, the wall clock.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.lab.compare.trace import Length, Tokens, TraceError, TraceRequest, decode_line

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

# (t_s, input tokens, output tokens, api time s, think time s, [first, last, first, last, ..])
_Call = tuple[float, Length, Length, float | None, float | None, list[int]]


class _SubAgent(msgspec.Struct):
    sub: list[_Call]
    t: float
    dur: float | None = None


class _Session(msgspec.Struct):
    id: str
    block: Tokens
    tool_tokens: int
    system_tokens: int
    requests: list[_Call | _SubAgent]


SESSIONS = 60


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How recorded sessions become a load.

    Attributes:
        seed: keys the sessions' starting times.
        start_window_s: sessions start uniformly in this window (the recording has no absolute times).
        scale: divides all lengths and the block size; 8 fits a 32k engine (93.6 % of requests).
        max_gap_s: longer think times are cut to this.
        time_scale: multiplies think times and nominal times; below 1 compresses.
        shared_prefix_share: leading part of the tool + system prefix that is common to all sessions. It is
            in reality, but the recorded ids are local to a session; 0.75 is the recording's authors' choice.
        max_prompt_tokens: a session stops before its first (scaled) prompt over this; None for no limit.
        skip_sessions: leave out so many sessions at the start, e.g. those that were tuned on.
        sessions: take at most so many; None for all (80 million block ids: several GB).
    """

    seed: int = 0
    start_window_s: float = 3600.0
    scale: int = 1
    max_gap_s: float = 600.0
    time_scale: float = 1.0
    shared_prefix_share: float = 0.75
    max_prompt_tokens: int | None = None
    skip_sessions: int = 0
    sessions: int | None = SESSIONS


def read_agent_sessions(lines: Iterable[str], options: AgentOptions | None = None) -> Iterator[TraceRequest]:
    """Requests session by session (not in time order: see `epp.lab.compare.trace.in_time_order`).

    Inside a session each request waits for the one before it and its think time. A sub-agent starts beside
    its parent, after the request before it, and counts as a session of its own with the parent's ids. A call
    of the parent waits for a sub-agent only when the recording shows the sub-agent finished before it.

    Raises:
        TraceError: a line is not a session of this format.
    """
    options = options or AgentOptions()
    decoder = msgspec.json.Decoder(_Session)
    index, skip = 0, options.skip_sessions
    end = None if options.sessions is None else skip + options.sessions
    for number, line in itertools.islice(enumerate(lines, 1), skip, end):
        if not line.strip():
            continue
        session = decode_line(line, number, decoder)
        if session.block % options.scale:
            raise TraceError(f"line {number}: scale {options.scale} does not divide block {session.block}")
        reader = _SessionReader(session, number, options, first_index=index)
        for request in reader.requests():
            index += 1
            yield request


@dataclass(slots=True)
class _Done:
    """The request that the next one waits for: its index, nominal end and recorded end."""

    index: int
    end_ms: float
    recorded_end_s: float


class _SessionReader:
    def __init__(self, session: _Session, number: int, options: AgentOptions, first_index: int) -> None:
        self._session, self._options, self._number = session, options, number
        self._index = first_index
        self._base = number << 32
        self._ids: dict[int, int] = {}
        prefix_tokens = (session.tool_tokens + session.system_tokens) * options.shared_prefix_share
        self._common_blocks = int(prefix_tokens) // session.block
        self._start_ms = options.start_window_s * 1000.0 * keyed_uniform(options.seed, session.id, "start")

    def requests(self) -> Iterator[TraceRequest]:
        done: _Done | None = None
        subs = 0
        finished: list[_Done] = []
        for entry in self._session.requests:
            if isinstance(entry, _SubAgent):
                subs += 1
                last = yield from self._sub_agent(entry, f"{self._session.id}/{subs}", done)
                if last is not None:
                    finished.append(last)
                continue
            if self._too_long(entry):
                return
            think_s = entry[4] or 0.0
            for sub in finished:
                if done is not None and done.recorded_end_s < sub.recorded_end_s <= entry[0]:
                    done, think_s = sub, entry[0] - sub.recorded_end_s
            finished.clear()
            request, done = self._call(entry, self._session.id, done, think_s, offset_s=0.0)
            yield request

    def _sub_agent(
        self, agent: _SubAgent, name: str, parent: _Done | None
    ) -> Generator[TraceRequest, None, _Done | None]:
        done = parent
        for position, call in enumerate(agent.sub):
            if self._too_long(call):
                break
            think_s = call[4] or 0.0
            if position == 0 and parent is not None:
                think_s = max(0.0, agent.t - parent.recorded_end_s)
            request, done = self._call(call, name, done, think_s, offset_s=agent.t)
            yield request
        return None if done is parent else done

    def _too_long(self, call: _Call) -> bool:
        limit = self._options.max_prompt_tokens
        return limit is not None and call[1] / self._options.scale > limit

    def _call(
        self, call: _Call, session: str, done: _Done | None, think_s: float, *, offset_s: float
    ) -> tuple[TraceRequest, _Done]:
        t_s, input_tokens, output_tokens, api_time_s, _, spans = call
        api_s = api_time_s or 0.0  # a few calls were recorded without it
        options = self._options
        think_ms = min(think_s, options.max_gap_s) * 1000.0 * options.time_scale
        at_ms = self._start_ms if done is None else done.end_ms + think_ms
        request = TraceRequest(
            at_ms=at_ms,
            session=session,
            user=self._session.id,
            prompt_tokens=max(1, round(input_tokens / options.scale)),
            output_tokens=max(1, round(output_tokens / options.scale)),
            block_ids=self._global_ids(spans),
            block_tokens=self._session.block // options.scale,
            after=None if done is None else done.index,
            think_ms=0.0 if done is None else think_ms,
        )
        ended = _Done(self._index, at_ms + api_s * 1000.0 * options.time_scale, offset_s + t_s + api_s)
        self._index += 1
        return request, ended

    def _global_ids(self, spans: list[int]) -> tuple[int, ...]:
        """Inclusive ranges of local ids to ids that are unique over sessions, the common prefix apart."""
        if len(spans) % 2:
            raise TraceError(f"line {self._number}: {spans[-1]} begins a range of blocks that has no end")
        spans_in_pairs = zip(spans[::2], spans[1::2], strict=True)
        local = [i for first, last in spans_in_pairs for i in range(first, last + 1)]
        common = 0
        while common < min(self._common_blocks, len(local)) and local[common] == common + 1:
            common += 1
        # One int object for each id, however many requests hold it: it is most of a trace's memory.
        known, base = self._ids, self._base
        return tuple(local[:common]) + tuple(known.setdefault(i, base + i) for i in local[common:])
