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
from epp.apis.canonical import Frames, check_texts, exact_tokens, frame_token_ids, media_words
from epp.apis.chat_messages import Message, add_message, media_parts
from epp.apis.decode import OpenAIFields, Whole, decode, decoder, output_limit, required
from epp.apis.error_bodies import openai_error
from epp.apis.media import PromptFrames
from epp.apis.types import ParsedRequest
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.apis.types import TemplateArguments


class _Chat(OpenAIFields, kw_only=True):
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
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    n: Any = None


class _Completion(OpenAIFields, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: str | list[str] | None = None
    suffix: Any = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    n: Any = None


_CHAT = decoder(_Chat)
_COMPLETION = decoder(_Completion)


def _request(
    api: str,
    body: _Chat | _Completion,
    canonical: bytes,
    headers: Mapping[str, str],
    arguments: TemplateArguments = (),
    *,
    text_only: bool = False,
) -> ParsedRequest:
    return ParsedRequest(
        api=api,
        model=body.model,
        canonical=canonical,
        stream=bool(body.stream),
        max_output_tokens=output_limit(
            max_completion_tokens=body.max_completion_tokens, max_tokens=body.max_tokens
        ),
        session=body.session(headers),
        cache_salt=body.salt(),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        template_arguments=arguments,
        text_only=text_only,
        choices=body.n if isinstance(body.n, int) and body.n > 1 else 1,
    )


def _template_arguments(chat: _Chat) -> TemplateArguments:
    more = chat.add_generation_prompt
    return template_arguments(
        chat.chat_template_kwargs, chat.reasoning_effort, chat.reasoning, add_generation_prompt=more
    )


class ChatParser:
    """``/v1/chat/completions``."""

    name = "openai-chat"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """A chat to canonical form: tools first, where templates put them, then the messages.

        Where the chat comes rendered, too, as token ids (SGLang's ``input_ids``, TensorRT-LLM's
        ``prompt_token_ids``), those are the prompt and the messages are not.

        Raises:
            ClientError: 400 in OpenAI's words.
        """
        chat = decode(_CHAT, body)
        required(chat.model, "model")
        if not chat.messages:
            raise ClientError(400, "Invalid request: 'messages' must not be empty", "messages")
        if ids := chat.input_ids or chat.prompt_token_ids:
            return _request(self.name, chat, _frame_rendered(chat, ids), headers)
        arguments = _template_arguments(chat)
        framed = _framed(chat, arguments)
        return _request(self.name, chat, framed.bytes(), headers, arguments, text_only=framed.text_only)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


def _framed(chat: _Chat, arguments: TemplateArguments) -> PromptFrames:
    framed = PromptFrames(chat.model)
    add_first(framed, chat.model, arguments)
    try:
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
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}") from None
    return framed


def _frame_rendered(chat: _Chat, ids: list[int]) -> bytes:
    """Token ids, and before them words for the messages' media, whose places only the engine knows."""
    framed = PromptFrames(chat.model)
    try:
        media = [framed.describe(part) for message in chat.messages for part in media_parts(message)]
        words = [word for identity, tokens in media for word in media_words(identity, tokens)]
        return frame_token_ids([words + ids])
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "input_ids") from None


class CompletionParser:
    """``/v1/completions``."""

    name = "openai-completions"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """A completion to canonical form: text as its bytes, token ids as four bytes each.

        What is to come behind a gap (SGLang's ``suffix``) follows the text before it, as in templates for
        filling gaps.

        Raises:
            ClientError: 400 in OpenAI's words.
        """
        completion = decode(_COMPLETION, body)
        required(completion.model, "model")
        if completion.prompt_embeds:
            canonical = _frame_embeds(completion, completion.prompt_embeds)
        elif completion.prompt is not None:
            canonical = frame_prompts(completion.prompt, "prompt") + _suffix(completion)
        else:
            raise ClientError(400, "Invalid request: missing required field 'prompt'", "prompt")
        return _request(self.name, completion, canonical, headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


def _suffix(completion: _Completion) -> bytes:
    framed = Frames()
    if isinstance(completion.prompt, str) and isinstance(completion.suffix, str) and completion.suffix:
        framed.add_text(b"C", completion.suffix)
    return framed.bytes()


def _frame_embeds(completion: _Completion, given: str | list[str]) -> bytes:
    """Tensors in base64 instead of a prompt (vLLM), or before one, each by the hash of its content."""
    framed = PromptFrames(completion.model)
    try:
        described = [framed.describe(one, "embeds") for one in ([given] if isinstance(given, str) else given)]
        prompt = frame_prompts(completion.prompt, "prompt") if completion.prompt else b""
        if exact_tokens(prompt) is not None:  # ids stand among ids alone
            words = [word for identity, tokens in described for word in media_words(identity, tokens)]
            return frame_token_ids([words, []]) + prompt.removeprefix(frame_token_ids([]))
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "prompt_embeds") from None
    for identity, tokens in described:
        framed.add_media(identity, tokens)
    return framed.bytes() + prompt


def check_listed(count: int, field: str) -> None:
    """Refuse more texts under a body's ``field`` than any engine takes.

    Raises:
        ClientError: 400, they are more than `epp.apis.canonical.MAX_TEXTS`.
    """
    try:
        check_texts(count)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", field) from None


def frame_prompts(given: str | Sequence[Any], field: str) -> bytes:
    """Canonical bytes of a text, texts, token ids or lists of token ids, but no mixture.

    Args:
        given: the prompts.
        field: the body's name for them.

    Raises:
        ClientError: 400, a mixture, no prompt at all, too many of them, or an id that is none.
    """
    if not given and not isinstance(given, str):
        raise ClientError(400, f"Invalid request: '{field}' must not be empty", field)
    prompts: list[Any] = given if isinstance(given, list) else [given]
    kinds = set(map(type, prompts))
    if len(kinds) > 1 or dict in kinds:
        raise ClientError(400, f"Invalid request: '{field}' mixes text and token ids", field)
    if kinds != {int}:
        check_listed(len(prompts), field)
    if kinds == {str}:
        framed = Frames()
        for text in prompts:
            framed.add_text(b"P", text)
        return framed.bytes()
    try:
        return frame_token_ids([prompts] if kinds == {int} else prompts)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", field) from None
