"""OpenAI chat completions and completions: bodies to canonical form.

What a template puts before the messages (the template itself, documents, tools) comes before them in the
canonical bytes, then the messages in order; `epp.apis.canonical` has the framing. Fields that only shape
the answer (``response_format``) are no part of it; nor are those that templates read
(``chat_template_kwargs``, ``reasoning_effort``), which mostly change the end, but they go with the request.
Where a model's prompts begin with one of them, so they do here (`epp.apis.arguments`). What engines normalise
before they render is written one way: arguments of calls, content that is null or empty, text parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.apis.arguments import add_arguments
from epp.apis.body import Body
from epp.apis.chat_messages import Message, add_messages, media_parts
from epp.apis.decode import Whole, invalid, output_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.apis.media import Part, PromptFrames


class _Generating(Body, kw_only=True):
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None

    def limit(self) -> int | None:
        """Return the output limit."""
        return output_limit(max_completion_tokens=self.max_completion_tokens, max_tokens=self.max_tokens)


class Chat(_Generating, kw_only=True):
    """A chat."""

    api = "openai-chat"
    messages: list[Message]
    input_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None
    add_generation_prompt: Any = None
    echo: Any = None

    def readable_tokens(self) -> int | None:
        """Return 0 where ``echo`` asks for probabilities, too: vLLM gives the prompt's with it."""
        return 0 if self.echo is True else super().readable_tokens()

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame a chat: tools first, where templates put them, then the messages.

        Where the chat comes rendered, too, as token ids (SGLang's ``input_ids``, TensorRT-LLM's
        ``prompt_token_ids``), those are the prompt. Words for the messages' media stand before them: only the
        engine knows their places.
        """
        messages = self.messages
        if not messages:
            raise invalid("'messages' must not be empty", "messages")
        if ids := self.input_ids or self.prompt_token_ids:
            media = [(part, "") for message in messages for part in media_parts(message)]
            add_prompts(framed, ids, "input_ids", media)
            return self.limit()
        more = self.add_generation_prompt
        add_arguments(
            framed,
            self.chat_template_kwargs,
            self.reasoning_effort,
            self.reasoning,
            add_generation_prompt=more,
        )
        if self.chat_template:
            framed.add_text(b"H", self.chat_template)
        for document in self.documents or ():
            framed.add_json(b"D", document)
        tools = [*(self.tools or ()), *(self.functions or ())]
        for tool in tools:
            if isinstance(tool, dict):
                tool.pop("cache_control", None)  # a mark for caching, which engines drop
        framed.add_tools(tools, self.tool_choice)
        add_messages(framed, messages)
        return self.limit()


class Completion(_Generating, kw_only=True):
    """A completion."""

    api = "openai-completions"
    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: str | list[str] | None = None
    suffix: Any = None
    echo: Any = None
    logprobs: Any = None

    def readable_tokens(self) -> int | None:
        """Return 0 where ``echo`` and ``logprobs`` ask for the prompt's probabilities."""
        return 0 if self.echo is True and self.logprobs is not None else super().readable_tokens()

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame a completion: text as its bytes, token ids as four bytes each.

        Tensors in base64 (vLLM's ``prompt_embeds``) come before the prompt or instead of it, each by the hash
        of its content. What is to come behind a gap (SGLang's ``suffix``) follows the text before it.
        """
        prompt, embeds = self.prompt, self.prompt_embeds or []
        tensors = [(one, "embeds") for one in ([embeds] if isinstance(embeds, str) else embeds)]
        if prompt or not tensors:
            add_prompts(framed, prompt, "prompt", tensors)
        for tensor in () if prompt else tensors:
            framed.add_part(*tensor)
        if isinstance(prompt, str) and isinstance(self.suffix, str) and self.suffix:
            framed.add_text(b"C", self.suffix)
        return self.limit()


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
    framed.prompts = len(prompts)
    if kinds != {str}:
        framed.add_ids([framed.words(media) + prompts[0], *prompts[1:]] if media else prompts, field)
        return
    for part in media:
        framed.add_part(*part)
    for text in prompts:
        framed.add_text(b"P", text)
