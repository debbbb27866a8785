"""The load generator: sends a workload to an OpenAI-compatible server over HTTP and measures every request.

Owns: connections, pacing and the client's clock. Rules: roots of a session are sent at their own times
whatever the server does (open loop), followers after the answer they wait for and their think time (closed
loop). Latency counts from the *intended* send time: a generator or a gateway that falls behind shows in the
figures instead of hiding there (coordinated omission); ``slip_ms`` says how much of it was ours.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp.lab.compare.sse import AnswerReader, StreamedAnswer
from epp.lab.compare.text import chat_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.lab.compare.trace import TraceRequest


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Times in ms; latencies count from the intended send time.

    Attributes:
        index: position in the workload: what pairs results of two runs.
        session: session of the request.
        user: user of the request.
        intended_ms: when it should have been sent, since the start of the run.
        slip_ms: how much later it was sent.
        ttft_ms: until the first chunk with text, thoughts included, None when none came.
        e2e_ms: until the answer ended (or failed).
        itl_ms: (E2E - TTFT) / (completion tokens - 1), None for answers of fewer than two tokens.
        status: HTTP status, 0 when there was no response.
        error: what went wrong, ``""`` for success.
        served_by: endpoint that answered, as the response header names it, ``""`` when it does not.
        decision_id: the picker's id of its decision, ``""`` when the response does not carry it.
        prompt_tokens: the engine's count when reported, else None.
        completion_tokens: the engine's count when reported, else the number of chunks with text.
        cached_tokens: the engine's count when reported, else None.
        planned_prompt_tokens: prompt length in the workload.
    """

    index: int
    session: str
    user: str
    intended_ms: float
    slip_ms: float
    ttft_ms: float | None
    e2e_ms: float
    itl_ms: float | None
    status: int
    error: str
    served_by: str = ""
    decision_id: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    planned_prompt_tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether the answer came whole."""
        return not self.error


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where and how to send.

    Attributes:
        base_url: scheme, host and port, without path.
        model: model name in each body.
        path: API path.
        headers: added to each request, e.g. authorization.
        session_header: carries the session's name, ``""`` to send none.
        served_by_header: response header that names the endpoint.
        decision_id_header: response header that carries the decision id.
        extra_body: fields added to each body, e.g. ``{"ignore_eos": True}`` for fixed output lengths.
        time_scale: multiplies send times and think times.
        stop_after_s: nothing whose intended time is later is sent; None to send all.
        max_in_flight: requests at once; what waits for its turn slips.
        timeout_s: limit for one request.
    """

    base_url: str
    model: str
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    session_header: str = "x-session-id"
    served_by_header: str = "x-served-by"
    decision_id_header: str = "x-epp-decision-id"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    time_scale: float = 1.0
    stop_after_s: float | None = None
    max_in_flight: int = 1024
    timeout_s: float = 300.0


async def run_load(
    requests: Sequence[TraceRequest],
    options: LoadOptions,
    *,
    on_send: Callable[[int], None] | None = None,
    on_result: Callable[[RequestResult], None] | None = None,
) -> list[RequestResult]:
    """Send the workload and return a result for each request sent, by index.

    A failed request is a result, not an exception; its session goes on with an invented answer, so that the
    load stays the same. Cancelling the call closes every connection; ``on_result`` has then seen all that
    had finished.

    Args:
        requests: the workload, in time order, ``after`` pointing backwards.
        options: where and how to send.
        on_send: called with the index just before a request is sent.
        on_result: called with each result as it comes.
    """
    connector = aiohttp.TCPConnector(limit=options.max_in_flight, keepalive_timeout=75.0)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=options.headers, auto_decompress=False
    ) as client:
        return await _Run(requests, options, client, on_send=on_send, on_result=on_result).run()


@dataclass(frozen=True, slots=True)
class _Times:
    """Moments of one request on the client's clock, in seconds."""

    intended: float
    sent: float
    first_token: float | None
    ended: float


class _Run:
    """One run: owns its start time, its results and the texts that sessions have received."""

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        options: LoadOptions,
        client: aiohttp.ClientSession,
        *,
        on_send: Callable[[int], None] | None,
        on_result: Callable[[RequestResult], None] | None,
    ) -> None:
        self._requests, self._options, self._client = requests, options, client
        self._on_send, self._on_result = on_send, on_result
        self._url = options.base_url.rstrip("/") + options.path
        self._clock = asyncio.get_running_loop().time
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self._results: dict[int, RequestResult] = {}
        self._followers: dict[int, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            if request.after is not None:
                self._followers[request.after].append(index)
        self._start = 0.0

    async def run(self) -> list[RequestResult]:
        scale = self._options.time_scale
        self._start = self._clock()
        async with asyncio.TaskGroup() as tasks:
            for index, request in enumerate(self._requests):
                if request.after is not None:
                    continue
                intended_s = request.at_ms * scale / 1000.0
                if self._too_late(intended_s):
                    break
                await self._sleep_until(intended_s)
                tasks.create_task(self._conversation(tasks, index, intended_s, {}))
        return [self._results[index] for index in sorted(self._results)]

    def _too_late(self, intended_s: float) -> bool:
        limit = self._options.stop_after_s
        return limit is not None and intended_s > limit

    async def _sleep_until(self, since_start_s: float) -> None:
        delay_s = self._start + since_start_s - self._clock()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def _conversation(
        self, tasks: asyncio.TaskGroup, index: int, intended_s: float, answers: dict[int, str]
    ) -> None:
        """Send one request at its time, then start whoever waits for its answer."""
        await self._sleep_until(intended_s)
        async with self._slots:
            result, content = await self._send(index, intended_s, answers)
        self._results[index] = result
        if self._on_result is not None:
            self._on_result(result)
        followers = self._followers.get(index, ())
        if not followers:
            return
        ended_s = self._clock() - self._start
        if result.ok and content:
            answers = {**answers, self._requests[index].prompt_tokens: content}
        for follower in followers:
            due_s = ended_s + self._requests[follower].think_ms * self._options.time_scale / 1000.0
            if not self._too_late(due_s):
                tasks.create_task(self._conversation(tasks, follower, due_s, answers))

    def _body(self, request: TraceRequest, answers: Mapping[int, str]) -> bytes:
        messages = chat_messages(request, answers)
        return msgspec.json.encode(
            {
                "model": self._options.model,
                "messages": [{"role": m.role, "content": m.content} for m in messages],
                "max_tokens": request.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._options.extra_body,
            }
        )

    async def _send(
        self, index: int, intended_s: float, answers: Mapping[int, str]
    ) -> tuple[RequestResult, str]:
        request, options = self._requests[index], self._options
        # Compressed, an answer could not be read as it comes.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if options.session_header:
            headers[options.session_header] = request.session
        body = self._body(request, answers)
        if self._on_send is not None:
            self._on_send(index)
        reader, status, error = AnswerReader(), 0, ""
        response_headers: Mapping[str, str] = {}
        sent = self._clock()
        try:
            async with self._client.post(self._url, data=body, headers=headers) as response:
                status, response_headers = response.status, response.headers
                if status == 200:
                    async for chunk in response.content.iter_any():
                        reader.feed(chunk, self._clock())
                else:
                    error = f"HTTP {status}: {(await response.read())[:300].decode(errors='replace')}"
        # ValueError: a session, a header or a host that cannot be sent.
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        ended = self._clock()
        answer = reader.finish()
        times = _Times(self._start + intended_s, sent, reader.first_token_at, ended)
        result = self._result(index, times, status, error or answer.error, answer)
        result = msgspec.structs.replace(
            result,
            served_by=response_headers.get(options.served_by_header, ""),
            decision_id=response_headers.get(options.decision_id_header, ""),
        )
        return result, answer.content

    def _result(
        self, index: int, times: _Times, status: int, error: str, answer: StreamedAnswer
    ) -> RequestResult:
        request, first = self._requests[index], times.first_token
        tokens = answer.completion_tokens if answer.completion_tokens is not None else answer.content_events
        itl_ms = (times.ended - first) * 1000.0 / (tokens - 1) if first is not None and tokens > 1 else None
        return RequestResult(
            index=index,
            session=request.session,
            user=request.user,
            intended_ms=(times.intended - self._start) * 1000.0,
            slip_ms=max(0.0, (times.sent - times.intended) * 1000.0),
            ttft_ms=None if first is None else (first - times.intended) * 1000.0,
            e2e_ms=(times.ended - times.intended) * 1000.0,
            itl_ms=itl_ms,
            status=status,
            error=error,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=tokens,
            cached_tokens=answer.cached_tokens,
            planned_prompt_tokens=request.prompt_tokens,
        )
