"""Writes docs/apis.md: ``python -m tools.gen_api_docs``.

The table is made from `tests.kit.apis`, where a feature is an example that a test runs: a cell cannot say
what is not so. A test compares the committed file with what this makes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from epp.apis.registry import ROUTES
from tests.kit.apis import APIS, FEATURES, Api, cached_tokens, has

PAGE = Path(__file__).parent.parent / "docs" / "apis.md"

HEAD = """<!-- Written by tools/gen_api_docs.py from tests/kit/apis.py; a test keeps it fresh. -->

# APIs

What the picker reads of each API that engines speak. Every *yes* is a test of its own
(`tests/apis/test_api_table.py`); *-* is what the API does not have.

"""

TAIL = """
*parse*: model, prompt and output limit are read; unknown fields are left to the engine. *refuse*: what is not
this API's gets a 400, and any bytes at all give a request, a pass-through or a 4xx. *error words*: every
refusal of the picker's, whatever its status, has the shape that the API's clients expect; what Envoy refuses by
itself (a body above the limit, nobody to send it to) is plain text. *prefix-stable*: a conversation's
next turn starts with the canonical bytes of the turn before. *token ids*: counted, not estimated. *media*:
known by the hash of their content, with an estimate of their tokens. *cached tokens*: the engine tells in
`usage` what its KV cache served.

## Paths

| path | API | methods |
|---|---|---|
{paths}

Paths of more than one piece are matched at the end, so that a gateway may put a prefix before them
(`/tenant/v1/messages`); a path of one piece must be the whole path. A body is read when its content type is
JSON or not given and it is not encoded. **Everything else passes through and is balanced**: other paths and
methods, audio as `multipart/form-data` (`/v1/audio/transcriptions`, `/v1/audio/translations`), gzip bodies.
Such requests need nothing but their headers to be picked, and so do upgrades: WebSockets (`/v1/realtime`,
`Upgrade: websocket`) and extended CONNECT, whose body ends only with the connection. That is for gateways that
forward upgrades: the Envoy of `epp envoy render` does not, an engine gets a plain GET of it.

## What becomes of a body

A prompt becomes *canonical bytes*: tools, system prompt, messages, in the order in which templates put them.
Messages, calls and results of every API are framed as the chat that engines make of them: a flat tool of
responses or Anthropic's `input_schema` as a function, each tool's result as a message of its own. What no
template renders is not in them: names and states of items, signatures, marks for caching, and the block of
attribution that Claude Code puts before its system prompt.

* **Bounds**: a 400 is what gets a model's name of more than 512 characters, more than 10,000 media and parts of
  unknown kinds, more than 100,000 tools, calls and other values that are no text, more than 100,000 prompts,
  documents and bare texts, or a body of more than 600,000 texts (names of members included), lists and objects,
  of more than 4,000,000 numbers and other values, or of more than 1,048,576 digits in numbers of about a thousand digits or more,
  which is not even decoded.
* **count_tokens** needs no prefill: it is balanced as an empty prompt, so no block is expected anywhere.
* **System messages among Anthropic's messages** stay in their place. vLLM moves them into the system prompt where the model's
  template takes none later: then each new one changes the prompt from its beginning, and fewer tokens are cached than
  expected, until `usage` tells.
* **Rankings and scores** are pairs, each with the first text anew, as a cross-encoder reads them; with SGLang's `item_first` the
  item stands first. **Gaps to fill** (its `suffix`) are texts that go on with what is to come behind the gap.
* **Bodies without `model`** get a 400 from OpenAI's and Anthropic's APIs, though vLLM and SGLang serve them their only model: which
  model is asked for decides who may serve it, where it is cached and what becomes of its name, and a client that forgets it would be served
  until the pool has a second one. The engines' own APIs, in which it may be left out, are read without; any endpoint may then serve them.
* **Stored responses**: what stands behind `previous_response_id` or `conversation` is not in the body; the
  prompt's length is that of the new input, and the session key is what keeps the turns at one endpoint. A
  `previous_response_id` is another one at every turn, and the ids of answers are not read, so it does not: give a
  session header, `conversation` or `prompt_cache_key`. An engine that stores responses knows its own only.
* **Arguments of templates** (`chat_template_kwargs`, how hard to think) tell prompts apart where a model's template puts them
  before the chat: by the model's name the effort of gpt-oss, GLM 5, DeepSeek V4, Step 3.7 and Kimi K3, and `enable_thinking` of Gemma 4 and
  SmolLM3; by its template, whatever the name, where the model has a [tokenizer](tokenizers.md). All others are no part of the hash.
  Templates put them at the end (Qwen3, DeepSeek V3.1, Kimi K2, Nemotron) or behind the system prompt (GLM 4.5, Mistral, Seed-OSS); a
  conversation that goes on with another setting is expected where it is cached, and where it is not, `usage` tells.
* **Chats as token ids**: where a chat brings its ids rendered (SGLang's `input_ids`, TensorRT-LLM's `prompt_token_ids`), these
  are the prompt, and of its messages only the media count.
* **vLLM generate**: where `features` tells the place of media, their hash stands there.
* **SGLang generate**: media stand where the text names their place (`<image>`, `<|image_pad|>`, ...), else first.
  `lora_path` and `extra_key` keep prefixes apart, as in the engine, and so they do in OpenAI's APIs; there
  TensorRT-LLM's `lora_request` does, too.
* **Embeddings instead of text** (vLLM's `prompt_embeds`) and what `/pooling` hands to a plugin (`data`) are known by the hash
  of their content.

## Session keys

The first of these that is a text and not empty: the headers `x-session-id`, `x-session-affinity`,
`session-id`, `x-conversation-id`, `x-claude-code-session-id`; then in the body

| API | fields, in order |
|---|---|
| OpenAI chat, completions | `session_id`, `metadata.session_id`, `prompt_cache_key`, `safety_identifier`, `user` |
| OpenAI responses | `session_id`, `metadata.session_id`, `conversation`, then as above, then `previous_response_id` |
| Anthropic | `session_id`, `metadata.session_id`, `metadata.user_id` |
| embeddings, pooling, rankings, scores | `session_id`, `user` |
| SGLang generate | `session_params.id`, `session_id`, `conversation_id`, `routing_key` |

## What media cost

An image's size is read from the first bytes of its file (PNG, JPEG, GIF, WebP) when it is in the body;
nothing is decoded and nothing fetched. A part with a `uuid` (vLLM) is known by that, and costs as if nothing
could be read: later turns may leave its file out.

| | rule | where nothing can be read |
|---|---|---|
| OpenAI's APIs | 85 tokens, and 170 a tile of 512 pixels, after shrinking to 2048 and 768; low detail 85 | 765 |
| Anthropic | a token for 750 pixels, after shrinking to 1568, at most 1600 | 1398 |
| Qwen-VL by model name, in any API | a token for 28 x 28 pixels (Qwen3: 32 x 32), 4 to 16,384 | 1369 (1024) |
| sound | 10 tokens a second (Anthropic, Qwen: 25); WAV by its header, else 128 kbit/s | 30 s |
| film | 250 tokens a second (Qwen: 384) at 2 Mbit/s, at most 22,118 | 10 s |
| documents | 2250 tokens a page of 50 KB, at most 100 pages | a page |

All media of one request claim at most 262,144 tokens. Sources: [A] in docs/sources.md; bytes a second and a page
are guesses.

## Usage

| API | where | the prompt's tokens |
|---|---|---|
| OpenAI chat, completions; vLLM | `usage`; streamed only with `stream_options.include_usage` | `prompt_tokens`, of these `prompt_tokens_details.cached_tokens` |
| OpenAI responses | `usage`; streamed in `response.completed` | `input_tokens`, of these `input_tokens_details.cached_tokens` |
| Anthropic | `usage`; streamed in `message_start` and `message_delta` | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` |
| SGLang generate | `meta_info`, in every event; batches are added up | `prompt_tokens`, of these `cached_tokens` |
| embeddings, pooling, rankings, scores | `usage` | `prompt_tokens`, or `total_tokens` alone |

Of several objects called `usage` in one line of an answer the last that has counts is the answer's own: others are
in what a model or a client wrote, a tool's input or its description. One of theirs is taken for it only where it has
counts of these names and stands behind the answer's own in the same line: a field echoed by an engine that tells the
usage first. In an event stream Envoy's filter keeps the first object of the stream beside the last, so that of two in
one line the other's counts fill what the last leaves out. Telling them apart would take a look at every brace and quote
behind the first, for every chunk of every answer.

## New versions of SDKs

`tools/record_golden_requests.py` drives the SDKs against a server of its own and writes `tests/apis/golden/`:
requests as they are really sent, each of which is read by a test. `make fuzz` breaks them in every way it knows.
"""  # noqa: E501 - rows of tables cannot be wrapped


def table() -> str:
    """APIs down, features across."""
    columns = [*FEATURES, "cached tokens"]
    lines = ["| API | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [f"| {api.title} | " + " | ".join(_cells(api)) + " |" for api in APIS]
    return "\n".join(lines) + "\n"


def _cells(api: Api) -> list[str]:
    told = [has(api, feature) for feature in FEATURES]
    return ["yes" if one else "-" for one in [*told, cached_tokens(api)]]


def _paths() -> str:
    titles = {api.name: api.title for api in APIS}
    return "\n".join(
        f"| `{path}` | {titles[route.parser.name]} | {', '.join(sorted(route.methods))} |"
        for route in ROUTES
        for path in route.paths
    )


def page() -> str:
    """The whole page."""
    return HEAD + table() + TAIL.replace("{paths}", _paths())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}\n")
