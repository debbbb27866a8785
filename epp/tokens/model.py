"""One model's tokenizer: prompts to counts, at the cost of what is new in them.

Called in worker threads, several at a time. Tokenizers gives up the interpreter's lock only in its batch
calls; a plain ``encode`` holds it throughout.

A rendered prompt is cut before *markers*: special tokens that tokenizers find in the raw text before anything
else happens to it, so that what is left and right of one never meets and the chunks' tokens add up. Prompts
with a common beginning have all chunks of it in common but the last: only new ones are tokenized.
"""

from __future__ import annotations

import os
import secrets
from array import array
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from epp.apis.content import prompt_content
from epp.apis.types import NotCountableError, TokenCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokenizers import Encoding, Tokenizer

    from epp.apis.content import PromptContent
    from epp.apis.types import TemplateArguments
    from epp.tokens.template import ChatTemplate


#: Shorter contents are found in wrong places more often than they help.
_LEAST_TIE_BYTES = 16
_HEAD_BYTES = 64
#: Bytes of rendered text that are searched in vain for the contents of one prompt: templates may write none
#: of them as they came, and a search for each to the end of the text takes the square of its length.
_MOST_SEARCHED = 256 * 1024 * 1024


def token_offsets(
    canonical: bytes, rendered: bytes, ends: Sequence[int], tokens: Sequence[int], block_bytes: int
) -> list[float]:
    """Return tokens from the start to the end of each whole block of a prompt.

    What a frame holds is found again in the rendered text and ties the two together; in between, both are
    stretched evenly. Exact at the ends of the pieces that were counted, even in between.

    Args:
        canonical: the prompt in frames.
        rendered: the same, as the tokenizer saw it.
        ends: ascending places in the rendered text.
        tokens: tokens up to each of them.
        block_bytes: bytes of canonical prompt per block.

    Returns:
        One ascending value a whole block.
    """
    places = np.arange(block_bytes, len(canonical) + 1, block_bytes, dtype=np.float64)
    if not len(places) or not ends:
        return []
    ours, theirs = _ties(canonical, rendered)
    return np.interp(np.interp(places, ours, theirs), (0, *ends), (0, *tokens)).tolist()


def _ties(canonical: bytes, rendered: bytes) -> tuple[list[int], list[int]]:
    """Return places in the one and the same places in the other, ascending in both."""
    ours, theirs = [0], [0]
    start, reached, left = 0, 0, _MOST_SEARCHED
    for frame in canonical.split(b"\xff"):
        end = start + len(frame)
        body = frame[1:]
        content = body.strip()
        if len(content) >= _LEAST_TIE_BYTES and left > 0:
            # Looked for by its head: searching for long needles costs a preparation as long as they are.
            found = rendered.find(content[:_HEAD_BYTES], reached)
            if found >= 0 and rendered.startswith(content, found):
                at = end - len(body.lstrip())
                reached = found + len(content)
                ours += (at, at + len(content))
                theirs += (found, reached)
            else:
                left -= (len(rendered) if found < 0 else found) - reached
        start = end + 1
    ours.append(len(canonical))
    theirs.append(len(rendered))
    return ours, theirs


#: Bytes of the shortest chunk, but for a text's last.
_LEAST_CHUNK_BYTES = 512
#: Markers beyond this many are left out: each costs a search through every prompt.
MAX_MARKERS = 24


def safe_markers(tokenizer: Tokenizer, wanted: Iterable[str]) -> list[bytes]:
    """Choose the special tokens before which every text may be cut.

    They take nothing of what is around them, and no other added token can begin before one and end inside it.
    """
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    found = []
    for text in dict.fromkeys(wanted):
        token = added.get(text)
        plain = token is not None and not (token.normalized or token.lstrip or token.single_word)
        if plain and not any(_reaches_into(other, text) for other in added):
            found.append(text.encode())
    return found[:MAX_MARKERS]


def _reaches_into(other: str, marker: str) -> bool:
    """Return whether ``other`` can begin before a marker and cover its first character."""
    ends = (other[start:] for start in range(1, len(other)))
    return any(end.startswith(marker) or marker.startswith(end) for end in ends)


def split_points(text: bytes, markers: Sequence[bytes], least_bytes: int = _LEAST_CHUNK_BYTES) -> list[int]:
    """Find where the chunks of a text end, the last at its end; none for the empty text."""
    size, position = len(text), least_bytes
    ends: list[int] = []
    next_at = [-1] * len(markers)
    while position < size:
        for number, marker in enumerate(markers):
            if next_at[number] < position:
                found = text.find(marker, position)
                next_at[number] = size if found < 0 else found
        position = min(next_at, default=size)
        ends.append(position)
        position += least_bytes
    if size and ends[-1:] != [size]:
        ends.append(size)
    return ends


#: Bytes that tokenizers is given in one call, and of the longest chunk that is counted at all: it takes up to
#: 330 bytes of memory for each while it works.
_BATCH_BYTES, _LONGEST_CHUNK = 262_144, 1 << 20
#: Counts kept for one tokenizer; 200 bytes each, and bytes of token ids kept in place of counts.
MAX_COUNTS, _MAX_ID_BYTES = 100_000, 64 << 20


class TokenizerModel:
    """Counts one model's prompts.

    Args:
        tokenizer: the model's; truncation and padding are turned off.
        template: the model's chat template; without one chats cannot be counted.
        markers: special tokens that rendered prompts hold.

    Attributes:
        keeps_ids: tell token ids, too.
        rendering: how its template renders chats; None of a model that takes none.
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
        # What is put around a text that is no chat, e.g. <s>.
        start = next((place for place in range(len(around)) if around[place:][: len(plain)] == plain), 0)
        self._before, self._after = _packed(around[:start]), _packed(around[start + len(plain) :])
        self._added = len(around) - len(plain)
        self.keeps_ids = False
        self.rendering = None if template is None else template.rendering()
        self._markers = safe_markers(tokenizer, markers)
        self._counts: dict[int, int | bytes] = {}  # of chunks, by their hashes; where ids are kept, these
        self._id_bytes = 0
        self._lock = Lock()
        self._seed = secrets.randbits(64)  # nobody outside can search for texts with one hash

    def count(self, canonical: bytes, block_bytes: int, arguments: TemplateArguments = ()) -> TokenCount:
        """Count a prompt's tokens, and how they spread over its blocks.

        Args:
            canonical: the prompt in frames, not given as token ids.
            block_bytes: bytes of canonical prompt per block.
            arguments: what the client gives the chat template.

        Raises:
            NotCountableError: the template refuses the chat, or there is nothing that renders it.
        """
        try:
            content = prompt_content(canonical)
        except ValueError as error:
            raise NotCountableError("content") from error
        texts = self.rendered(content, arguments)
        around = 0 if content.messages else self._added
        ends: list[int] = []
        tokens: list[int] = []
        ids: list[bytes] = []
        position, total = 0, content.media_tokens
        for text in texts:
            text_ends = split_points(text, self._markers)
            chunks = self._chunk_tokens([text[start:end] for start, end in pairwise((0, *text_ends))])
            counts = [_length(chunk) for chunk in chunks]
            ids += [chunk for chunk in chunks if isinstance(chunk, bytes)]
            ends += [position + end for end in text_ends]
            tokens += [total + count for count in accumulate(counts)]
            position += len(text)
            total += around + sum(counts)
        offsets: list[float] = []
        if not content.media_tokens:  # where media are in the text, templates know and canonical bytes do not
            offsets = token_offsets(canonical, b"".join(texts), ends, tokens, block_bytes)
        if content.media_tokens or len(texts) != 1 or len(ids) != len(ends):
            return TokenCount(total, offsets)
        return TokenCount(total, offsets, b"".join([self._before, *ids, self._after] if around else ids))

    def rendered(self, content: PromptContent, arguments: TemplateArguments = ()) -> list[bytes]:
        """Return the texts that a prompt's tokens are made from.

        Raises:
            NotCountableError: as `count`.
        """
        if not content.messages:
            return [text.encode() for text in content.texts]
        if self._template is None or content.chat_template:
            raise NotCountableError("template")
        return [self._template.render(content, arguments).encode("utf-8", "replace")]

    def _chunk_tokens(self, chunks: Sequence[bytes]) -> list[int | bytes]:
        """Count each chunk, or tell its token ids, looking up those that were counted before."""
        keys, keeps_ids = [xxhash.xxh3_128_intdigest(chunk, self._seed) for chunk in chunks], self.keeps_ids
        with self._lock:
            counts = {key: self._counts[key] for key in keys if key in self._counts}
        if keeps_ids:  # what was counted before they were asked for is encoded again
            counts = {key: known for key, known in counts.items() if isinstance(known, bytes)}
        new = {key: chunk for key, chunk in zip(keys, chunks, strict=True) if key not in counts}
        if max(map(len, new.values()), default=0) > _LONGEST_CHUNK:
            raise NotCountableError("content")
        found = self._encoded(new.values())
        counts |= zip(new, (_packed(each.ids) if keeps_ids else len(each) for each in found), strict=True)
        with self._lock:  # the most recently used stand last
            for key in counts:
                self._id_bytes -= _size(self._counts.pop(key, 0))
            self._counts |= counts
            self._id_bytes += sum(map(_size, counts.values()))
            while len(self._counts) > MAX_COUNTS or self._id_bytes > _MAX_ID_BYTES:
                self._id_bytes -= _size(self._counts.pop(next(iter(self._counts))))
        return [counts[key] for key in keys]

    def _encoded(self, chunks: Iterable[bytes]) -> Iterator[Encoding]:
        """Tokenize chunks, in batches whose memory is bounded."""
        batch: list[str] = []
        size = 0
        for chunk in chunks:
            batch.append(chunk.decode())
            size += len(chunk)
            if size >= _BATCH_BYTES:
                yield from self._encoded_batch(batch)
                batch, size = [], 0
        yield from self._encoded_batch(batch)

    def _encoded_batch(self, texts: list[str]) -> list[Encoding]:
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _length(chunk: int | bytes) -> int:
    return len(chunk) // 4 if isinstance(chunk, bytes) else chunk


def _size(chunk: int | bytes) -> int:
    return len(chunk) if isinstance(chunk, bytes) else 0
