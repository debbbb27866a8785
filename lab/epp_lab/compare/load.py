"""The load generator: sends a workload to an OpenAI-compatible server over HTTP and measures every request.

Rules: roots of a session are sent at their own times whatever the server does (open loop), followers after
the answer they wait for and their think time (closed loop). Latency counts from the *intended* send time: a
generator or a gateway that falls behind shows in the figures instead of hiding there (coordinated omission);
``slip_ms`` says how much of it was ours.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp.apis.usage import NO_USAGE, usage_from
from epp.records.files import DAMAGED
from epp.request.queueing import FAIRNESS_HEADER
from epp.schedule.admission import OBJECTIVE_HEADERS
from epp_lab.compare.text import chat_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp_lab.compare.trace import TraceRequest

_TIMEOUT_S = 300.0


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Times in ms; latencies count from the intended send time.

    Attributes:
        index: position in the workload: what pairs results of two runs.
        session: session of the request.
        intended_ms: when it should have been sent, since the start of the run.
        slip_ms: how much later it was sent.
        ttft_ms: until the first chunk with text, thoughts included, None when none came.
        e2e_ms: until the answer ended (or failed).
        itl_ms: (E2E - TTFT) / (completion tokens - 1), None for answers of fewer than two tokens.
        status: HTTP status, 0 when there was no response.
        error: what went wrong, ``""`` for success.
        served_by: endpoint that answered, as the response header names it, ``""`` when it does not.
        decision_id: the picker's id of its decision, ``""`` when the response does not carry it.
        prompt_tokens, cached_tokens: the engine's counts when reported, else None.
        completion_tokens: the engine's count when reported, else the number of chunks with text.
    """

    index: int
    session: str
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
        headers: added to each request, e.g. authorization.
        extra_body: fields added to each body, e.g. ``{"ignore_eos": True}`` for fixed output lengths.
        time_scale: multiplies send times and think times.
        max_in_flight: requests at once; what waits for its turn slips.
        resend: send a request again that got no answer at all, such as on a connection that was just closed.
    """

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    time_scale: float = 1.0
    max_in_flight: int = 1024
    resend: bool = False


def objective_of(priority: int) -> str:
    """Name the InferenceObjective of a priority, as requests of tenants do."""
    return f"priority-{priority}"


def add_api_key(add: Callable[..., object]) -> None:
    """Declare where a command has its API key from."""
    add("--bearer-token-file", type=Path, help="holds the API key (else OPENAI_API_KEY in the environment)")


def api_key_headers(file: Path | None) -> dict[str, str]:
    """Return the request headers with the key of a file, else of the environment."""
    token = file.read_text().strip() if file else os.environ.get("OPENAI_API_KEY", "-")
    return {"authorization": f"Bearer {token}"}


async def run_load(
    requests: Sequence[TraceRequest],
    options: LoadOptions,
    *,
    on_result: Callable[[RequestResult], None] = lambda _: None,
) -> list[RequestResult]:
    """Send the workload and return a result for each request, by index.

    A failed request is a result, not an exception; its session goes on with an invented answer, so that the
    load stays the same. Cancelling the call closes every connection; ``on_result`` has then seen all that
    had finished.

    Args:
        requests: the workload, in time order, ``after`` pointing backwards.
        options: where and how to send.
        on_result: called with each result as it comes.
    """
    connector = aiohttp.TCPConnector(limit=options.max_in_flight, keepalive_timeout=75.0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=options.headers, auto_decompress=False
    ) as client:
        return await _Run(requests, options, client, on_result).run()


class _Run:
    """One run: its start time, its results and the texts that sessions have received."""

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        options: LoadOptions,
        client: aiohttp.ClientSession,
        on_result: Callable[[RequestResult], None],
    ) -> None:
        self._requests, self._options, self._client = requests, options, client
        self._on_result = on_result
        self._url = options.base_url.rstrip("/") + "/v1/chat/completions"
        self._clock = asyncio.get_running_loop().time
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self._results: dict[int, RequestResult] = {}
        self._followers: dict[int, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            if request.after is not None:
                self._followers[request.after].append(index)
        self._start_s = self._clock()

    async def run(self) -> list[RequestResult]:
        async with asyncio.TaskGroup() as tasks:
            for index, request in enumerate(self._requests):
                if request.after is None:
                    due_s = self._start_s + request.at_ms * self._options.time_scale / 1000.0
                    tasks.create_task(self._conversation(tasks, index, due_s, {}))
        return [self._results[index] for index in sorted(self._results)]

    async def _conversation(
        self, tasks: asyncio.TaskGroup, index: int, due_s: float, answers: dict[int, str]
    ) -> None:
        """Send one request at its time, then start whoever waits for its answer."""
        if (delay_s := due_s - self._clock()) > 0:
            await asyncio.sleep(delay_s)
        async with self._slots:
            result, content = await self._send(index, due_s, answers)
            if self._options.resend and not result.status:
                result, content = await self._send(index, self._clock(), answers)
        self._results[index] = result
        self._on_result(result)
        ended_s = self._clock()
        if result.ok and content:
            answers = {**answers, self._requests[index].prompt_tokens: content}
        for follower in self._followers.get(index, ()):
            think_s = self._requests[follower].think_ms * self._options.time_scale / 1000.0
            tasks.create_task(self._conversation(tasks, follower, ended_s + think_s, answers))

    def _body(self, request: TraceRequest, answers: Mapping[int, str]) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._options.model,
                "messages": chat_messages(request, answers),
                "max_tokens": request.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._options.extra_body,
            }
        )

    async def _send(self, index: int, due_s: float, answers: Mapping[int, str]) -> tuple[RequestResult, str]:
        request = self._requests[index]
        # Compressed, an answer could not be read as it comes.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        headers["x-session-id"] = request.session
        if request.tenant:
            headers |= {FAIRNESS_HEADER: request.tenant, OBJECTIVE_HEADERS[0]: objective_of(request.priority)}
        body = self._body(request, answers)
        answer, status, error = _Answer(), 0, ""
        response_headers: Mapping[str, str] = {}
        sent_s = self._clock()
        try:
            async with self._client.post(self._url, data=body, headers=headers) as response:
                status, response_headers = response.status, response.headers
                if status == 200:
                    async for chunk in response.content.iter_any():
                        answer.feed(chunk, self._clock())
                else:
                    error = f"HTTP {status}: {(await response.read())[:300].decode(errors='replace')}"
        # ValueError: a session, a header or a host that cannot be sent.
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        ended_s, first_s, usage = self._clock(), answer.first_text_s, answer.usage
        tokens = answer.text_events if usage.completion_tokens is None else usage.completion_tokens
        result = RequestResult(
            index=index,
            session=request.session,
            intended_ms=(due_s - self._start_s) * 1000.0,
            slip_ms=max(0.0, (sent_s - due_s) * 1000.0),
            ttft_ms=None if first_s is None else (first_s - due_s) * 1000.0,
            e2e_ms=(ended_s - due_s) * 1000.0,
            itl_ms=None if first_s is None or tokens < 2 else (ended_s - first_s) * 1000.0 / (tokens - 1),
            status=status,
            error=error or answer.error or ("" if answer.ended else "the stream stopped before its end"),
            served_by=response_headers.get("x-served-by", ""),
            decision_id=response_headers.get("x-epp-decision-id", ""),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=tokens,
            cached_tokens=usage.cached_tokens,
        )
        return result, "".join(answer.texts)


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    # What a model thinks before it answers: the second is vLLM's name of late.
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Any = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


class _Answer:
    """A streamed chat completion, cut anywhere.

    Attributes:
        texts: pieces of the answer's text, without what was thought before.
        text_events: events that carried text, thoughts included.
        first_text_s: when the first of them was complete.
        usage: the engine's counts.
        error: an error event or an unreadable one, ``""`` if none.
        ended: whether its end has come.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.text_events = 0
        self.first_text_s: float | None = None
        self.usage = NO_USAGE
        self.error = ""
        self.ended = False
        self._pending = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes as they arrive."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            payload = line[5:].strip() if line.startswith(b"data:") else b""
            if payload == b"[DONE]":
                self.ended = True
            elif payload:
                self._event(payload, now_s)

    def _event(self, payload: bytes, now_s: float) -> None:
        try:
            event = _DECODER.decode(payload)
        except DAMAGED as error:
            self.error = self.error or f"unreadable event: {error}"
            return
        if event.error is not None:
            self.error = self.error or str(event.error)[:500]
        if event.usage is not None:
            self.usage = usage_from(event.usage)
        deltas = [choice.delta for choice in event.choices]
        self.texts += [delta.content for delta in deltas if delta.content]
        self.ended = self.ended or any(choice.finish_reason for choice in event.choices)
        if any(delta.content or delta.reasoning_content or delta.reasoning for delta in deltas):
            self.text_events += 1
            self.first_text_s = now_s if self.first_text_s is None else self.first_text_s
