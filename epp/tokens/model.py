"""One model's tokenizer: prompts to counts, at the cost of what is new in them.

Called in worker threads, several at a time. Tokenizers gives up the interpreter's lock only in its batch
calls; a plain ``encode`` holds it throughout.
"""

from __future__ import annotations

import os
import secrets
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import xxhash

from epp.apis.content import prompt_content
from epp.apis.types import CountedPrompt, NotCountableError
from epp.tokens.chunks import ChunkCounts, safe_markers, split_points
from epp.tokens.token_offsets import token_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokenizers import Tokenizer

    from epp.apis.content import PromptContent
    from epp.apis.types import TemplateArguments
    from epp.tokens.template import ChatTemplate

#: Bytes that tokenizers is given in one call, and of the longest chunk that is counted at all: it takes up to
#: 330 bytes of memory for each while it works.
_BATCH_BYTES, _LONGEST_CHUNK = 262_144, 1 << 20


class TokenizerModel:
    """Counts one model's prompts.

    Args:
        tokenizer: the model's; truncation and padding are turned off.
        template: the model's chat template; without one chats cannot be counted.
        markers: special tokens that rendered prompts hold.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, template: ChatTemplate | None = None, markers: Iterable[str] = ()
    ) -> None:
        # Batches of one request are small, and the picker has threads of its own.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._template = tokenizer, template
        plain, around = (
            tokenizer.encode_batch_fast(["a"], add_special_tokens=add)[0].ids for add in (False, True)
        )
        self._added = len(around) - len(plain)  # what is put around a text that is no chat, e.g. <s>
        self.first_arguments = {} if template is None else template.first_arguments()
        self._markers = safe_markers(tokenizer, markers)
        self._counts = ChunkCounts()
        self._seed = secrets.randbits(64)  # nobody outside can search for texts with one hash

    def count(self, canonical: bytes, block_bytes: int, arguments: TemplateArguments = ()) -> CountedPrompt:
        """Count a prompt's tokens, and how they spread over its blocks.

        Args:
            canonical: the prompt in frames, not given as token ids.
            block_bytes: bytes of canonical prompt per block.
            arguments: what the client gives the chat template.

        Raises:
            NotCountableError: the template refuses the chat, or there is nothing that renders it.
        """
        content = self._content(canonical)
        texts = self._texts(content, arguments)
        around = 0 if content.messages else self._added
        ends: list[int] = []
        tokens: list[int] = []
        position, total = 0, content.media_tokens
        for text in texts:
            text_ends = split_points(text, self._markers)
            counts = self._chunk_tokens([text[start:end] for start, end in pairwise((0, *text_ends))])
            ends += [position + end for end in text_ends]
            tokens += [total + count for count in accumulate(counts)]
            position += len(text)
            total += around + sum(counts)
        offsets: list[float] = []
        if not content.media_tokens:  # where media are in the text, templates know and canonical bytes do not
            offsets = token_offsets(canonical, b"".join(texts), ends, tokens, block_bytes)
        return CountedPrompt(total, offsets)

    def rendered(self, canonical: bytes, arguments: TemplateArguments = ()) -> list[bytes]:
        """Return the texts that a prompt's tokens are made from.

        Raises:
            NotCountableError: as `count`.
        """
        return self._texts(self._content(canonical), arguments)

    def _content(self, canonical: bytes) -> PromptContent:
        try:
            return prompt_content(canonical)
        except ValueError as error:
            raise NotCountableError("content") from error

    def _texts(self, content: PromptContent, arguments: TemplateArguments) -> list[bytes]:
        if not content.messages:
            return [text.encode() for text in content.texts]
        if self._template is None or content.chat_template:
            raise NotCountableError("template")
        # imported with the template: a model without one needs no Jinja
        from epp.tokens.template import RenderError  # noqa: PLC0415

        try:
            return [self._template.render(content, arguments).encode("utf-8", "replace")]
        except RenderError as error:
            raise NotCountableError("template") from error

    def _chunk_tokens(self, chunks: Sequence[bytes]) -> list[int]:
        """Count each chunk, looking up those that were counted before."""
        keys = [xxhash.xxh3_128_intdigest(chunk, self._seed) for chunk in chunks]
        counts = dict(zip(keys, self._counts.find(keys), strict=True))
        new = {key: chunk for key, chunk in zip(keys, chunks, strict=True) if counts[key] is None}
        if max(map(len, new.values()), default=0) > _LONGEST_CHUNK:
            raise NotCountableError("content")
        counted = dict(zip(new, self._encoded_lengths(new.values()), strict=True))
        self._counts.add(counted.items())
        return [(counts | counted)[key] or 0 for key in keys]

    def _encoded_lengths(self, chunks: Iterable[bytes]) -> Iterator[int]:
        """Tokenize chunks, in batches whose memory is bounded."""
        batch: list[str] = []
        size = 0
        for chunk in chunks:
            batch.append(chunk.decode())
            size += len(chunk)
            if size >= _BATCH_BYTES:
                yield from self._batch_lengths(batch)
                batch, size = [], 0
        yield from self._batch_lengths(batch)

    def _batch_lengths(self, texts: list[str]) -> list[int]:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(found) for found in encoded]
