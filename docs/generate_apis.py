"""Writes docs/apis.md: ``python -m docs.generate_apis``.

The table is made from `tests.kit.apis`, where a feature is an example that a test runs: a cell cannot say
what is not so. A test compares the committed file with what this makes.
"""

from __future__ import annotations

from pathlib import Path

from epp.apis.paths import UNREAD
from tests.kit.apis import APIS, FEATURES, SHUT, cached_tokens, has

PAGE = Path(__file__).parent / "apis.md"

HEAD = """<!-- Written by docs/generate_apis.py from tests/kit/apis.py; a test keeps it fresh. -->

# APIs

The picker reads model, prompt, output limit, session key and cache salt of each. It refuses other bodies with
a 400 in the shape that the API's clients expect. Where the pool serves one model, a body needs to name none.

"""

TAIL = """
*prefix-stable*: the next turn of a conversation starts with the bytes of the turn before. *token ids*: counted, not estimated.
*media*: known by their content, with an estimate of their tokens. *cached tokens*: `usage` tells what the KV cache served.

A gateway may put a prefix before a versioned path (`/tenant/v1/messages`); any other must be the whole path. A body is read when it comes
by POST (`/generate`: or PUT), its content type is JSON or not given, and it is not encoded. Other bodies and methods pass unread and are
balanced. **WebSockets** (`/v1/realtime`, `/v1/responses`) get one decision, by their headers, and stay with that endpoint. HTTP/1.0 is
served, and up to 256 headers are taken.

Errors are in the API's words, whether the picker makes them or Envoy itself (413, 503, 504). A request that Envoy cannot read
(400, 431) gets OpenAI's.

## Open and shut paths

Clients reach engines by the paths above and by the open ones below. Every other path gets a 404: by Envoy's routes, also
while the picker is dead; on gateways whose routes are not ours by the picker. `request.open_paths` opens further paths:
`[/metrics]` one, `[/]` all. `*` stands for all paths below.

"""  # noqa: E501 - as below

REST = """
The picker answers `GET /v1/models` and `/v1/models/NAME`, without a key: all public names of the pool, with the largest context
(`max_model_len`) of any endpoint, and an adapter's `parent`. Left out are engines whose list is not known, what a rule rewrites a
name to, and what region rules keep from this client. Clients that send `anthropic-version` get Anthropic's form. With a dead
picker, or while no list is known, one engine answers.

## Clients

Change only the address of `openai`, `langchain-openai`, `litellm` (base URL `http://HOST:8080/v1`) and `anthropic` (`http://HOST:8080`). Errors come as each
client's own exceptions. GuideLLM and AIPerf: [measured](measured/clients.md).

* **LangChain's embeddings** need `check_embedding_ctx_length=False`, else they are counted by a tokenizer from a hub.
* **LiteLLM**: `hosted_vllm/MODEL`, which also ranks; `anthropic/MODEL` needs `max_tokens`, else it asks for 128,000.

## What becomes of a body

A prompt becomes *canonical bytes*: tools, system prompt and messages in the order of templates, framed as a chat for every API, without what no template
renders (names and states of items, signatures, marks for caching, the attribution that Claude Code puts before its system prompt).

* **Model**: OpenAI's and Anthropic's APIs must name it, in at most 512 characters. The engines' own APIs may leave it out; any
  endpoint may then serve the request.
* **Bounds**: more than 10,000 media and parts of unknown kinds, or 100,000 texts, tools, calls and other
  values get a 400, and so does a body of more than 600,000 texts, lists and objects, or 4,000,000 numbers.
* **count_tokens** is balanced as an empty prompt.
* **System messages among Anthropic's messages** stay in their place. Where vLLM moves them to the front, fewer tokens are cached
  than expected, until `usage` corrects it.
* **Rankings and scores** are pairs, each with the first text anew.
* **Stored responses**: a request with a `previous_response_id`, or the id in `/v1/responses/ID`, goes to the engine that stores it,
  while that one may serve. The picker knows the last 100,000 ids of a day since its start. The prompt counts without the stored text.
* **Arguments of templates** (`chat_template_kwargs`, how hard to think) tell prompts apart where the model's template puts them
  before the chat. The picker knows that by name for gpt-oss, GLM 5, DeepSeek V4, Step 3.7, Kimi K3, Gemma 4 and SmolLM3, and by the
  template for every model with a [tokenizer](tokenizers.md). For others it takes lists and objects to do so.
* **Requests that read no prefix cache** are priced as a full prefill everywhere: those with `prompt_logprobs`, `echo` (with `logprobs` in completions),
  `cache_prompt: false` (llama.cpp), `return_logprob` with `logprob_start_len` (SGLang; a hit reaches up to there), token-wise tasks of `/pooling`,
  `skip_reading_prefix_cache`.
* **Cut prompts** (`truncate_prompt_tokens`, `truncation_side`) cost what is left of them. Where the beginning is cut, nothing is shared;
  where the end is cut (usual for embeddings), the rest is hashed. With -1, or `truncation: auto`, any endpoint's context will do.
* **Several prompts** in one body are looked up one by one, up to 64; each needs its own context. Each of them counts as a running
  request, and so does each answer of `n`, `best_of` and beams.
* **Chats as token ids** (SGLang's `input_ids`, TensorRT-LLM's `prompt_token_ids`): these are the prompt; of the messages only
  the media count.
* **What keeps prefixes apart**: `cache_salt`, `extra_key`, `lora_path`, TensorRT-LLM's `lora_request`.

## Session keys

The first of these that is a text and not empty: the headers `x-session-id`, `x-session-affinity`, `session-id`,
`x-conversation-id`, `x-claude-code-session-id`, `x-dynamo-session-id`, `x-opencode-session`, `x-amp-thread-id`,
`x-litellm-session-id`, `session_id`; in the body `session_params.id`, `session_id`, `metadata.session_id`,
`conversation`, `conversation_id`, `routing_key`, `prompt_cache_key`, `metadata.user_id`, `safety_identifier`, `user`,
`previous_response_id`.

## What media cost

An image's size is read from the first bytes of its file (PNG, JPEG, GIF, WebP) when it is in the body; nothing is fetched. A
part with a `uuid` (vLLM) is known by that, and costs as if nothing could be read.

| | rule | where nothing can be read |
|---|---|---|
| OpenAI's APIs | 85 tokens, and 170 a tile of 512 pixels, after shrinking to 2048 and 768; low detail 85 | 765 |
| Anthropic | a token for 750 pixels, after shrinking to 1568, at most 1600 | 1399 |
| Qwen-VL by model name | a token for 28 x 28 pixels (Qwen3: 32 x 32), 4 to 16,384 | 1369 (1024) |
| sound | 10 tokens a second (Anthropic, Qwen: 25); WAV by its header, else 128 kbit/s | 30 s |
| film | 250 tokens a second (Qwen: 384) at 2 Mbit/s, at most 22,118 | 10 s |
| documents | 2250 tokens a page of 50 KB, at most 100 pages | a page |

All media of one request claim at most 262,144 tokens. Sources: [A] in docs/sources.md.

## What is read in answers

| API | first token: the first event with | no content | failure |
|---|---|---|---|
| chat, completions | text, reasoning, a refusal, a tool call, sound, an image | role chunks, empty deltas, usage, `prompt_progress` | `error`, `"object": "error"`, finish reason `error` or `abort` |
| OpenAI responses | `response.*.delta`, `partial_image`, an item that names a tool | every other event | `error`, `response.failed` |
| Anthropic | `content_block_delta`, a block that names a tool or hides thoughts | every other event | `error` |
| SGLang, vLLM, llama.cpp generate | text or token ids that are not empty | empty ones, `prompt_progress` | `error`, finish reason `abort` |

Comments (`: ping`) and empty deltas do not count. `event: error` alone (Dynamo) is a failure. An event that is in no row is content, and so is the first
piece of an answer that is no event stream. A whole answer fails by the same members in its outermost object (`epp/apis/events.py`).

| API | where | the prompt's tokens |
|---|---|---|
| OpenAI chat, completions; vLLM | `usage`; streamed only with `stream_options.include_usage` | `prompt_tokens`, of these `prompt_tokens_details.cached_tokens` |
| OpenAI responses | `usage`; streamed in `response.completed` | `input_tokens`, of these `input_tokens_details.cached_tokens` |
| Anthropic | `usage`; streamed in `message_start` and `message_delta` | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` |
| llama.cpp completion | `timings`, in each prompt's last event | `cache_n` + `prompt_n`, of these `cache_n` |
| SGLang generate | `meta_info`, in every event; batches are added up | `prompt_tokens`, of these `cached_tokens` |
| embeddings, pooling, rankings, scores | `usage` | `prompt_tokens`, or `total_tokens` alone |

Where one line of an answer has several objects called `usage`, the last that has counts is used.
"""  # noqa: E501 - rows of tables cannot be wrapped


def table() -> str:
    """Return the table: APIs down, features across."""
    columns = [name for name in FEATURES if not all(has(api, name) for api in APIS)]
    lines = ["| API | paths | " + " | ".join((*columns, "cached tokens")) + " |"]
    lines += ["|---|" + "---|" * (len(columns) + 2)]
    for api in APIS:
        cells = ["yes" if one else "-" for one in (*(has(api, name) for name in columns), cached_tokens(api))]
        lines.append(
            f"| {api.title} | {', '.join(f'`{path}`' for path in api.paths)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def paths() -> str:
    """Return the table of paths that no parser reads."""
    lines = ["| | paths | what for, or why not |", "|---|---|---|"]
    for state, groups in (("open", UNREAD), ("shut", SHUT)):
        lines += [
            f"| {state} | {', '.join(f'`{path}`' for path in group.split())} | {why} |"
            for why, group in groups.items()
        ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    return HEAD + table() + TAIL + paths() + REST


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
