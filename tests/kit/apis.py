"""Every API by example: what each can do, told by data that tests drive and `docs/apis.md` is made from.

A field that is None is a feature that the API does not have (`WHY_NOT` may say why). Nothing here is a claim:
`tests/apis/test_api_table.py` runs each example that is there, and the table has a yes exactly where one is.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from epp.apis.usage import Usage

Body = dict[str, Any]


def png_header(width: int, height: int, salt: bytes = b"") -> str:
    """As much of a PNG, in base64, as tells its size."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)
    return base64.b64encode(head + salt.ljust(64, b"\0")).decode()


ONE, TWO = png_header(1024, 1024, b"one"), png_header(1024, 1024, b"two")


@dataclass(frozen=True)
class Api:
    """One API.

    Attributes:
        name: its parser's name.
        title: in words.
        paths: the routes that lead to it, one example each.
        body: the least that is read.
        limit: output limit that `body` comes to.
        turns: bodies of a conversation; each must start with the canonical bytes of the one before it.
        ids: a body with token ids, and how many they are.
        media: two bodies that differ in an image of a megapixel alone, and the least that it must cost.
        bad: bodies that must be refused with 400.
        error: what a 400 with words ``no`` for the field ``f`` looks like.
        stream: an event stream, and the usage in it.
        answer: a whole answer, and the usage in it.
    """

    name: str
    title: str
    paths: tuple[str, ...]
    body: Body
    limit: int | None
    error: Body
    turns: tuple[Body, ...] | None = None
    ids: tuple[Body, int] | None = None
    media: tuple[Body, Body, int] | None = None
    bad: tuple[bytes, ...] = field(default=(b"", b"{", b"[]", b"null", b'{"model": 5}', b"{}"))
    stream: tuple[bytes, Usage] | None = None
    answer: tuple[bytes, Usage] | None = None


def _events(*payloads: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in payloads) + end


def _user(content: Any) -> Body:
    return {"role": "user", "content": content}


OPENAI_ERROR = {"error": {"message": "no", "type": "invalid_request_error", "param": "f", "code": None}}
VLLM_ERROR = {"error": {"message": "no", "type": "BadRequestError", "param": "f", "code": 400}}
SGLANG_ERROR = {"error": {"message": "no"}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}

M: Body = {"model": "m"}
_COUNTS = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
_TOLD = Usage(20, 3, 16)
_CHAT_TURNS = (
    [{"role": "system", "content": "s"}, _user("a")],
    [{"role": "assistant", "content": "b", "tool_calls": [{"id": "1", "type": "function", "function": {}}]}],
    [{"role": "tool", "tool_call_id": "1", "content": "c"}, _user([{"type": "text", "text": "d"}])],
)


def _grown(field_name: str, steps: tuple[list[Any], ...], **more: Any) -> tuple[Body, ...]:
    grown: list[Any] = []
    return tuple(M | more | {field_name: (grown := [*grown, *step])} for step in steps)


def _image_chat(data: str, field_name: str = "messages") -> Body:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return M | {field_name: [_user([part, {"type": "text", "text": "what?"}])]}


CHAT = Api(
    "openai-chat",
    "OpenAI chat completions",
    ("/v1/chat/completions",),
    M | {"messages": [_user("a")], "max_completion_tokens": 7},
    7,
    OPENAI_ERROR,
    turns=_grown("messages", _CHAT_TURNS, tools=[{"type": "function", "function": {"name": "f"}}]),
    media=(_image_chat(ONE), _image_chat(TWO), 765),
    stream=(_events({"choices": [], "usage": None}, {"choices": [], "usage": _COUNTS}), _TOLD),
    answer=(json.dumps({"choices": [], "usage": _COUNTS}).encode(), _TOLD),
)
COMPLETIONS = Api(
    "openai-completions",
    "OpenAI completions",
    ("/v1/completions",),
    M | {"prompt": "a", "max_tokens": 7},
    7,
    OPENAI_ERROR,
    turns=(M | {"prompt": "a"}, M | {"prompt": "a and b"}, M | {"prompt": "a and b and c"}),
    ids=(M | {"prompt": [[1, 2, 3], [4]]}, 4),
    stream=(_events({"choices": [{"text": "x"}]}, {"choices": [], "usage": _COUNTS}), _TOLD),
    answer=(json.dumps({"choices": [], "usage": _COUNTS}).encode(), _TOLD),
)
_RESPONSE_USAGE = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 3}
_RESPONSE_TURNS = (
    [_user("a")],
    [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
        {
            "type": "function_call",
            "id": "f",
            "call_id": "1",
            "name": "f",
            "arguments": "{}",
            "status": "done",
        },
    ],
    [{"type": "function_call_output", "call_id": "1", "output": "c"}],
    [
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b"}],
        },
        _user([{"type": "input_text", "text": "d"}]),
    ],
)


def _image_response(data: str) -> Body:
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}
    return M | {"input": [_user([part])]}


RESPONSES = Api(
    "openai-responses",
    "OpenAI responses",
    ("/v1/responses",),
    M | {"input": "a", "max_output_tokens": 7},
    7,
    OPENAI_ERROR,
    turns=_grown("input", _RESPONSE_TURNS, instructions="s", tools=[{"type": "function", "name": "f"}]),
    media=(_image_response(ONE), _image_response(TWO), 765),
    bad=(b"", b"{", b"[]", b'{"model": "m"}', b'{"model": "m", "input": []}', b'{"model": "m", "input": 5}',
         b'{"model": "m", "input": [{"content": "x"}]}', b'{"model": "m", "input": [{"role": "a", "content": 5}]}'),
    stream=(
        _events({"type": "response.created", "response": {"usage": None}},
                {"type": "response.completed", "response": {"usage": _RESPONSE_USAGE}}, end=b""),
        _TOLD,
    ),
    answer=(json.dumps({"object": "response", "usage": _RESPONSE_USAGE}).encode(), _TOLD),
)  # fmt: skip
_ANTHROPIC = M | {"max_tokens": 7}
_ANTHROPIC_BEGUN = {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 1}
_MESSAGE_TURNS = (
    [_user("a")],
    [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                                       {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
     _user([{"type": "tool_result", "tool_use_id": "1", "content": "c"}, {"type": "text", "text": "d"}])],
    [{"role": "assistant", "content": "b"}, _user("e")],
)  # fmt: skip


def _image_message(data: str) -> Body:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return _ANTHROPIC | {"messages": [_user([{"type": "image", "source": source}])]}


MESSAGES = Api(
    "anthropic-messages",
    "Anthropic messages",
    ("/v1/messages",),
    _ANTHROPIC | {"messages": [_user("a")]},
    7,
    ANTHROPIC_ERROR,
    turns=_grown("messages", _MESSAGE_TURNS, max_tokens=7, system="s", tools=[{"name": "f", "input_schema": {}}]),
    media=(_image_message(ONE), _image_message(TWO), 1399),
    bad=(b"", b"{", b"[]", b'{"model": "m", "messages": []}', b'{"model": "m", "messages": [], "max_tokens": 1}',
         b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
         b'{"model": "m", "messages": [{"role": "user", "content": 5}], "max_tokens": 1}'),
    stream=(
        _events({"type": "message_start", "message": {"usage": _ANTHROPIC_BEGUN}},
                {"type": "message_delta", "usage": {"output_tokens": 3}}, end=b""),
        _TOLD,
    ),
    answer=(json.dumps({"type": "message", "usage": _ANTHROPIC_BEGUN | {"output_tokens": 3}}).encode(), _TOLD),
)  # fmt: skip
COUNT = Api(
    "anthropic-count-tokens",
    "Anthropic count_tokens",
    ("/v1/messages/count_tokens",),
    M | {"messages": [_user("a")]},
    0,
    ANTHROPIC_ERROR,
)
_POOLED = (json.dumps({"data": [], "usage": {"prompt_tokens": 20, "total_tokens": 20}}).encode(), Usage(20))


def _embeddings(name: str, title: str, paths: tuple[str, ...], error: Body) -> Api:
    return Api(
        name,
        title,
        paths,
        M | {"input": "a"},
        0,
        error,
        turns=(M | {"input": "a"}, M | {"input": ["a and"]}, M | {"input": ["a and", "b"]}),
        ids=(M | {"input": [[1, 2], [3]]}, 3),
        media=(_image_chat(ONE), _image_chat(TWO), 765),
        answer=_POOLED,
    )


EMBEDDINGS = _embeddings("openai-embeddings", "OpenAI embeddings", ("/v1/embeddings",), OPENAI_ERROR)
CLASSIFY = _embeddings("vllm-classify", "vLLM classify", ("/classify", "/v1/classify"), VLLM_ERROR)
POOLING = _embeddings("vllm-pooling", "vLLM pooling", ("/pooling", "/v1/pooling"), VLLM_ERROR)


def _image_document(data: str) -> Body:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    return {"query": "q", "documents": [{"content": parts}]}


RERANK = Api(
    "vllm-rerank",
    "vLLM rerank",
    ("/rerank", "/v1/rerank", "/v2/rerank"),
    {"query": "q", "documents": ["a", {"text": "b"}]},
    0,
    VLLM_ERROR,
    turns=({"query": "q", "documents": ["a"]}, {"query": "q", "documents": ["a", "b"]}),
    media=(_image_document(ONE), _image_document(TWO), 765),
    answer=_POOLED,
)
SCORE = Api(
    "vllm-score",
    "vLLM score",
    ("/score", "/v1/score"),
    {"text_1": "a", "text_2": ["b", "c"]},
    0,
    VLLM_ERROR,
    turns=({"queries": "q", "documents": ["a"]}, {"queries": "q", "items": ["a", "b"]}),
    media=(
        {"data_1": "q", "data_2": _image_document(ONE)["documents"][0]},
        {"data_1": "q", "data_2": _image_document(TWO)["documents"][0]},
        765,
    ),
    bad=(b"", b"{", b"[]", b"{}", b'{"text_1": "a"}', b'{"text_1": "a", "text_2": []}',
         b'{"text_1": ["a", "b"], "text_2": ["c"]}', b'{"text_1": 5, "text_2": 6}'),
    answer=_POOLED,
)  # fmt: skip
_VLLM_TOKENS: Body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 7}}


def _image_tokens(name: str) -> Body:
    places = {"image": [{"offset": 1, "length": 900}]}
    features = {"mm_hashes": {"image": [name]}, "mm_placeholders": places}
    return _VLLM_TOKENS | {"token_ids": [5] * 1000, "features": features}


VLLM_GENERATE = Api(
    "vllm-generate",
    "vLLM generate (tokens in)",
    ("/inference/v1/generate",),
    _VLLM_TOKENS,
    7,
    VLLM_ERROR,
    turns=(_VLLM_TOKENS, _VLLM_TOKENS | {"token_ids": [1, 2, 3, 4]}),
    ids=(_VLLM_TOKENS, 3),
    media=(_image_tokens("a" * 64), _image_tokens("b" * 64), 1000),
    stream=(_events({"choices": [{"token_ids": [1]}]}, {"choices": [], "usage": _COUNTS}), _TOLD),
    answer=(json.dumps({"choices": [], "usage": _COUNTS}).encode(), _TOLD),
)
_META = {"id": "x", "finish_reason": None, "prompt_tokens": 20, "completion_tokens": 3, "cached_tokens": 16}
SGLANG_GENERATE = Api(
    "sglang-generate",
    "SGLang generate",
    ("/generate",),
    {"text": "a", "sampling_params": {"max_new_tokens": 7}},
    7,
    SGLANG_ERROR,
    turns=({"text": "a"}, {"text": "a and b"}, {"text": ["a and b", "c"]}),
    ids=({"input_ids": [[1, 2], [3]]}, 3),
    media=({"text": "a <image> b", "image_data": ONE}, {"text": "a <image> b", "image_data": [TWO]}, 765),
    bad=(b"", b"{", b"[]", b"{}", b'{"text": 5}', b'{"text": []}', b'{"input_ids": []}', b'{"input_ids": [1, [2]]}',
         b'{"input_ids": []}', b'{"input_ids": [-1]}'),
    stream=(_events({"text": "x", "meta_info": _META | {"completion_tokens": 1}}, {"meta_info": _META}), _TOLD),
    answer=(json.dumps({"text": "x", "meta_info": _META}).encode(), _TOLD),
)  # fmt: skip
_TIMINGS = {"cache_n": 16, "prompt_n": 4, "prompt_ms": 1.5, "predicted_n": 3, "predicted_ms": 0.5}
_FINAL = {
    "content": "",
    "stop": True,
    "model": "m",
    "tokens_evaluated": 20,
    "tokens_cached": 23,
    "timings": _TIMINGS,
}
LLAMA = Api(
    "llamacpp-completion",
    "llama.cpp completion, infill",
    ("/completion", "/completions", "/infill"),
    {"prompt": "a", "n_predict": 7},
    7,
    OPENAI_ERROR,
    turns=({"prompt": "a"}, {"prompt": "a and b"}, {"prompt": ["a and b", "c"]}),
    ids=({"prompt": [[1, 2], [3]]}, 3),
    media=(
        {"prompt": {"prompt_string": "a <__media__>", "multimodal_data": [ONE]}},
        {"prompt": {"prompt_string": "a <__media__>", "multimodal_data": [TWO]}},
        765,
    ),
    bad=(b"", b"{", b"[]", b"{}", b'{"prompt": []}', b'{"prompt": [-1]}'),
    stream=(_events({"content": "x", "stop": False}, _FINAL, end=b""), _TOLD),
    answer=(json.dumps(_FINAL | {"content": "x"}).encode(), _TOLD),
)

APIS = (
    CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, COUNT, RERANK, SCORE, CLASSIFY, POOLING, VLLM_GENERATE,
    SGLANG_GENERATE, LLAMA,
)  # fmt: skip

#: Column of the table -> whether an API has it.
FEATURES: dict[str, str] = {
    "parse": "body",
    "refuse": "bad",
    "error words": "error",
    "prefix-stable": "turns",
    "token ids": "ids",
    "media": "media",
    "usage, streamed": "stream",
    "usage, whole": "answer",
}


def has(api: Api, feature: str) -> bool:
    """Whether an API has a feature: it is exactly then that a test runs its example."""
    return getattr(api, FEATURES[feature]) is not None


def cached_tokens(api: Api) -> bool:
    """Whether the usage of an API tells what the KV cache served."""
    told = api.answer or api.stream
    return told is not None and told[1].cached_tokens is not None


#: What engines serve beside their APIs, by why clients do not reach it; a blank between.
SHUT: dict[str, str] = {
    "tells what all clients do": "/metrics /prometheus/metrics /perf_metrics /load /get_load /v1/loads"
    " /slots /kv_cache_events",
    "tells how the engine runs": "/server_info /get_server_info /model_info /get_model_info /info /props"
    " /tokenizer_info /docs /openapi.json",
    "stops, pauses or profiles it": "/sleep /wake_up /is_sleeping /pause /resume /pause_generation"
    " /release_memory_occupation /resume_memory_occupation /start_profile /stop_profile /collective_rpc"
    " /scale_elastic_ep /slow_down",
    "changes what it serves": "/v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter"
    " /unload_lora_adapter /lora-adapters /models/load /models/unload /update_weights"
    " /update_weights_from_disk /update_weights_from_tensor /init_weights_update_group"
    " /get_weights_by_name",
    "empties caches that others use": "/reset_prefix_cache /reset_mm_cache /flush_cache",
    "ends or steers others' requests": "/abort_request /abort_requests /v1/chat/completions/control",
    "generates unpriced; the same is had on an open path": "/invocations /vertex_generate"
    " /generate_from_file /health_generate /api/chat /api/generate",
}
