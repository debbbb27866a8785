"""Answers in each API's own shapes, whole or event by event, with the engine's counts where the API has them.

The classes follow what the APIs' makers document (source [A]) and what their clients parse; all text is one
message, choice or document list. A format knows no transport, and no clock but for dates.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.sim.api import SimRequest

    Fields = dict[str, Any]
    Events = list[Fields]

_DIMENSIONS = 16


class Format:
    """One answer of an API that is never streamed, and what all have in common.

    Args:
        asked: the request.
        model: the model that answers.
        name: names the answer among all of its replica.
        words: the answer, one word per token.
        finish_reason: ``stop`` or ``length``.

    Attributes:
        prefix: of the answer's id.
        streams: whether the API has event streams.
        end_mark: data of the event behind the last one, none if empty.
        cached_tokens: of the prompt, from the cache.
    """

    prefix, streams, end_mark = "", False, b""

    def __init__(
        self, asked: SimRequest, model: str, name: str, words: Sequence[str], finish_reason: str
    ) -> None:
        self.asked, self.model, self.id = asked, model, f"{self.prefix}-{name}"
        self.words, self.finish_reason = words, finish_reason
        self.created_s, self.cached_tokens = int(time.time()), 0

    def begin(self) -> Events:
        """Return the events before the first token; `cached_tokens` is known."""
        return []

    def token(self, number: int) -> Events:
        """Return the events of a token."""
        raise NotImplementedError

    def end(self) -> Events:
        """Return the events behind the last token."""
        return []

    def whole(self) -> Fields:
        """Return the answer in one piece."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Return the answer's text."""
        return "".join(self.words)

    def reason_at(self, number: int) -> str | None:
        """Return the finish reason if this is the last token."""
        return self.finish_reason if number == len(self.words) - 1 else None

    def usage(self) -> Fields:
        """Return the counts as OpenAI's chat API and the engines spell them."""
        prompt, answer = self.asked.prompt_tokens, len(self.words)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Completion(Format):
    """OpenAI completions: one chunk per token, the last with the finish reason, then usage if asked for."""

    prefix, streams, end_mark = "cmpl", True, b"[DONE]"
    kind = chunk_kind = "text_completion"

    def token(self, number: int) -> Events:
        return [self._chunk(self.said(self.words[number : number + 1]), self.reason_at(number))]

    def end(self) -> Events:
        wanted = self.asked.parsed.include_usage
        return [self._head(self.chunk_kind) | {"choices": [], "usage": self.usage()}] if wanted else []

    def whole(self) -> Fields:
        choice = self._choice(self.said(self.words, "message"), self.finish_reason)
        return self._head(self.kind) | {"choices": [choice], "usage": self.usage()}

    def said(self, words: Sequence[str], field: str = "delta") -> Fields:
        """Return a choice's fields for words of the answer."""
        return {"text": "".join(words)}

    def _head(self, kind: str) -> Fields:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}

    def _chunk(self, said: Fields, finish_reason: str | None = None) -> Fields:
        return self._head(self.chunk_kind) | {"choices": [self._choice(said, finish_reason)]}

    @staticmethod
    def _choice(said: Fields, finish_reason: str | None) -> Fields:
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}


class Chat(Completion):
    """OpenAI chat completions: the first chunk has the role."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self) -> Events:
        return [self._chunk({"delta": {"role": "assistant", "content": ""}})]

    def said(self, words: Sequence[str], field: str = "delta") -> Fields:
        role = {"role": "assistant"} if field == "message" else {}
        return {field: {**role, "content": "".join(words)}}


class Tokens(Completion):
    """vLLM's tokens out."""

    def said(self, words: Sequence[str], field: str = "delta") -> Fields:
        return {"token_ids": [int.from_bytes(word.encode(), "little") for word in words]}

    def _head(self, kind: str) -> Fields:
        return {"request_id": self.id}


class Sglang(Format):
    """SGLang's generate: each event has all of the text so far, and counts."""

    streams, end_mark = True, b"[DONE]"

    def token(self, number: int) -> Events:
        return [self._said(number + 1)]

    def whole(self) -> Fields:
        return self._said(len(self.words))

    def _said(self, count: int) -> Fields:
        reason = self.reason_at(count - 1)
        meta = {
            "id": self.id,
            "finish_reason": reason and {"type": reason},
            "prompt_tokens": self.asked.prompt_tokens,
            "completion_tokens": count,
            "cached_tokens": self.cached_tokens,
        }
        return {"text": "".join(self.words[:count]), "meta_info": meta}


class Llama(Format):
    """llama.cpp's completion: the text of each token, and counts with the last; no event ends it."""

    streams = True

    def token(self, number: int) -> Events:
        said = {"content": self.words[number], "stop": False}
        return [said if self.reason_at(number) is None else said | self._counts()]

    def whole(self) -> Fields:
        return {"content": self.text} | self._counts()

    def _counts(self) -> Fields:
        prompt, answer, cached = self.asked.prompt_tokens, len(self.words), self.cached_tokens
        timings = {"cache_n": cached, "prompt_n": prompt - cached, "predicted_n": answer}
        return {"stop": True, "tokens_cached": prompt + answer, "timings": timings}


class Responses(Format):
    """OpenAI responses: an item with one part of text; the last event holds the whole response."""

    prefix, streams = "resp", True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._events = 0
        self.id = self.id.replace("-", "_", 1)

    def begin(self) -> Events:
        running = self._response("in_progress")
        return [
            self._event("created", response=running),
            self._event("in_progress", response=running),
            self._event("output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("content_part.added", **self._place(), part=self._part("")),
        ]

    def token(self, number: int) -> Events:
        return [self._event("output_text.delta", **self._place(), delta=self.words[number], logprobs=[])]

    def end(self) -> Events:
        whole = self.whole()
        item = whole["output"][0]
        return [
            self._event("output_text.done", **self._place(), text=self.text, logprobs=[]),
            self._event("content_part.done", **self._place(), part=item["content"][0]),
            self._event("output_item.done", output_index=0, item=item),
            self._event(whole["status"], response=whole),
        ]

    def whole(self) -> Fields:
        status = "completed" if self.finish_reason == "stop" else "incomplete"
        usage = {
            "input_tokens": self.asked.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": len(self.words),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.asked.prompt_tokens + len(self.words),
        }
        return self._response(status, usage, [self._item(status, [self._part(self.text)])])

    def _response(self, status: str, usage: Fields | None = None, output: Sequence[Fields] = ()) -> Fields:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": None,
            "incomplete_details": why,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def _item(self, status: str, content: Events) -> Fields:
        mine = {"id": f"msg-{self.id}", "type": "message", "role": "assistant"}
        return {**mine, "status": status, "content": content}

    @staticmethod
    def _part(text: str) -> Fields:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _place(self) -> Fields:
        return {"item_id": f"msg-{self.id}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> Fields:
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **fields}


class Messages(Format):
    """Anthropic messages: one block of text; first the prompt is counted, at last the answer."""

    prefix, streams = "msg", True

    def begin(self) -> Events:
        message = self._message([], None, 0)
        block = {"type": "text", "text": ""}
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
        ]

    def token(self, number: int) -> Events:
        delta = {"type": "text_delta", "text": self.words[number]}
        return [{"type": "content_block_delta", "index": 0, "delta": delta}]

    def end(self) -> Events:
        whole = self.whole()
        delta = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": whole["usage"]},
            {"type": "message_stop"},
        ]

    def whole(self) -> Fields:
        reason = "end_turn" if self.finish_reason == "stop" else "max_tokens"
        return self._message([{"type": "text", "text": self.text}], reason, len(self.words))

    def _message(self, content: Events, reason: str | None, answer_tokens: int) -> Fields:
        usage = {
            "input_tokens": self.asked.prompt_tokens - self.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": answer_tokens,
        }
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }


class Pooled(Format):
    """A vector, class, number or rank for each prompt, drawn from its text."""

    def whole(self) -> Fields:
        rows = [{"index": index, **self.row(text)} for index, text in enumerate(self.asked.prompts())]
        tokens = self.asked.prompt_tokens
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        head = {"id": self.id, "created": self.created_s, "model": self.model, "usage": usage}
        return head | self.listed(rows)

    def listed(self, rows: Events) -> Fields:
        """Return the rows as the API lists them."""
        return {"object": "list", "data": rows}

    def row(self, text: bytes) -> Fields:
        """Return what is said of one prompt."""
        return {"object": "embedding", "embedding": self.drawn(text, _DIMENSIONS)}

    @staticmethod
    def drawn(text: bytes, count: int) -> list[float]:
        """Return numbers from 0 to 1."""
        return [xxhash.xxh3_64_intdigest(text, seed) / 2**64 for seed in range(count)]


class Pooling(Pooled):
    """vLLM's pooling."""

    def row(self, text: bytes) -> Fields:
        return {"object": "pooling", "data": self.drawn(text, _DIMENSIONS)}


class Classified(Pooled):
    """vLLM's classify, between two classes."""

    def row(self, text: bytes) -> Fields:
        (one,) = self.drawn(text, 1)
        return {"label": f"LABEL_{int(one < 0.5)}", "probs": [one, 1 - one], "num_classes": 2}


class Scored(Pooled):
    """vLLM's score."""

    def row(self, text: bytes) -> Fields:
        return {"object": "score", "score": self.drawn(text, 1)[0]}


class Ranked(Pooled):
    """vLLM's rerank: the best first."""

    def row(self, text: bytes) -> Fields:
        return {"relevance_score": self.drawn(text, 1)[0]}

    def listed(self, rows: Events) -> Fields:
        rows.sort(key=lambda row: row["relevance_score"], reverse=True)
        return {"results": rows[: self.asked.top_n]}


#: By the name of the API's parser.
FORMATS: dict[str, type[Format]] = {
    "openai-chat": Chat,
    "openai-completions": Completion,
    "openai-responses": Responses,
    "openai-embeddings": Pooled,
    "anthropic-messages": Messages,
    "vllm-rerank": Ranked,
    "vllm-score": Scored,
    "vllm-classify": Classified,
    "vllm-pooling": Pooling,
    "vllm-generate": Tokens,
    "sglang-generate": Sglang,
    "llamacpp-completion": Llama,
}
