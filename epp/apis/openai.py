"""OpenAI chat completions and completions: bodies to canonical form.

What a template puts before the messages (the template itself, documents, tools) comes before them in the
canonical bytes, then the messages in order; `epp.apis.canonical` has the framing. Fields that only shape
the answer (``tool_choice``, ``response_format``) are no part of it; nor are those that templates read
(``chat_template_kwargs``, ``reasoning_effort``), which mostly change the end, but they go with the request.
Where a model's prompts begin with one of them, so they do here (`epp.apis.arguments`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.apis.arguments import add_first, template_arguments
from epp.apis.body import Body
from epp.apis.chat_messages import Message, add_message, media_parts
from epp.apis.decode import Whole, invalid, output_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.apis.media import Part, PromptFrames
    from epp.apis.types import Headers, ParsedRequest, TemplateArguments


class _Generating(Body, kw_only=True):
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    n: Any = None

    def asked(
        self, api: str, framed: PromptFrames, headers: Headers, arguments: TemplateArguments = ()
    ) -> ParsedRequest:
        """Return the request with its output limit and choices."""
        limit = output_limit(max_completion_tokens=self.max_completion_tokens, max_tokens=self.max_tokens)
        return self.request(api, framed, headers, limit, arguments=arguments, choices=self.n)


class _Chat(_Generating, kw_only=True):
    messages: list[Message]
    input_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None
    add_generation_prompt: Any = None


class _Completion(_Generating, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: str | list[str] | None = None
    suffix: Any = None


def parse_chat(body: bytes, headers: Headers) -> ParsedRequest:
    """Read a chat: tools first, where templates put them, then the messages.

    Where the chat comes rendered, too, as token ids (SGLang's ``input_ids``, TensorRT-LLM's
    ``prompt_token_ids``), those are the prompt. Words for the messages' media stand before them: only the
    engine knows their places.

    Raises:
        ClientError: the body is not what this API accepts, here and in all APIs.
    """
    chat = _Chat.read(body)
    framed = chat.frames()
    if not chat.messages:
        raise invalid("'messages' must not be empty", "messages")
    if ids := chat.input_ids or chat.prompt_token_ids:
        media = [(part, "") for message in chat.messages for part in media_parts(message)]
        add_prompts(framed, ids, "input_ids", media)
        return chat.asked("openai-chat", framed, headers)
    more = chat.add_generation_prompt
    arguments = template_arguments(
        chat.chat_template_kwargs, chat.reasoning_effort, chat.reasoning, add_generation_prompt=more
    )
    add_first(framed, arguments)
    if chat.chat_template:
        framed.add_text(b"H", chat.chat_template)
    for document in chat.documents or ():
        framed.add_json(b"D", document)
    for tool in (*(chat.tools or ()), *(chat.functions or ())):
        if isinstance(tool, dict):
            tool.pop("cache_control", None)  # a mark for caching, which engines drop
        framed.add_described(b"T", tool)
    for message in chat.messages:
        add_message(framed, message)
    return chat.asked("openai-chat", framed, headers, arguments)


def parse_completion(body: bytes, headers: Headers) -> ParsedRequest:
    """Read a completion: text as its bytes, token ids as four bytes each.

    Tensors in base64 (vLLM's ``prompt_embeds``) come before the prompt or instead of it, each by the hash of
    its content. What is to come behind a gap (SGLang's ``suffix``) follows the text before it.
    """
    asked = _Completion.read(body)
    framed, prompt, embeds = asked.frames(), asked.prompt, asked.prompt_embeds or []
    tensors = [(one, "embeds") for one in ([embeds] if isinstance(embeds, str) else embeds)]
    if prompt or not tensors:
        add_prompts(framed, prompt, "prompt", tensors)
    for tensor in () if prompt else tensors:
        framed.add_part(*tensor)
    if isinstance(prompt, str) and isinstance(asked.suffix, str) and asked.suffix:
        framed.add_text(b"C", asked.suffix)
    return asked.asked("openai-completions", framed, headers)


def add_prompts(framed: PromptFrames, given: object, field: str, media: Sequence[Part] = ()) -> None:
    """Frame a text, texts, token ids or lists of token ids, but no mixture.

    Args:
        framed: the prompt so far.
        given: the prompts.
        field: the body's name for them.
        media: what comes before them, as words among token ids.

    Raises:
        ClientError: 400, a mixture, no prompt at all, too many of them, or an id that is none.
    """
    if given is None or given == []:
        raise invalid(f"'{field}' must not be empty", field)
    prompts: list[Any] = given if isinstance(given, list) else [given]
    kinds = set(map(type, prompts))
    if len(kinds) > 1 or dict in kinds:
        raise invalid(f"'{field}' mixes text and token ids", field)
    if kinds == {int}:
        prompts = [prompts]
    framed.count_values(len(prompts))
    if kinds != {str}:
        framed.add_ids([framed.words(media) + prompts[0], *prompts[1:]] if media else prompts, field)
        return
    for part in media:
        framed.add_part(*part)
    for text in prompts:
        framed.add_text(b"P", text)
