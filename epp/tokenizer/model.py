"""One model's tokenizer: prompts to counts, at the cost of what is new in them.

Owns a tokenizer, its seams, its memory of pieces and, where there is one, a faster encoder. Called in worker
threads, several at a time; whatever takes long gives up the interpreter's lock: tokenizers only in its batch
calls (measured; a plain ``encode`` holds it throughout), Kitoken's calls are short because longer texts are
not given to it.

Seams and the faster encoder were proven when the model was loaded. One new piece in `AUDIT_EVERY` is counted
again together with its neighbours, by tokenizers; should that ever differ, the model is counted
without either from then on, and says so.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from array import array
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import xxhash

from epp.prompt.content import prompt_content
from epp.prompt.curve import block_curve
from epp.prompt.seams import Seams
from epp.prompt.types import CountedPrompt
from epp.tokenizer.cache import ID_BYTES, PieceCache
from epp.tokenizer.chapters import CHAPTER_BYTES, Chapters
from epp.tokenizer.proof import encode_all, safe_markers, safe_pairs, spanning_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokenizers import Tokenizer

    from epp.prompt.content import PromptContent
    from epp.prompt.types import TemplateArguments
    from epp.tokenizer.template import ChatTemplate

log = logging.getLogger(__name__)

AUDIT_EVERY = 512
#: A prime: audits of prompts alike in length look at different places.
_STRIDE = 7919
DEFAULT_CACHE_BYTES = 64 * 1024 * 1024
#: New text that is encoded before other threads get the lock: at 4 MB/s half a millisecond.
_TURN_BYTES = 2048
#: Characters of the longest text that the faster encoder is given; a piece without a seam may have more.
#: A run of a million blanks overflows its regular expressions, and that ends the process.
_LONGEST_FAST = 32_768
#: Characters that tokenizers is given in one call, and bytes of the longest piece that is counted at all: it
#: takes up to 330 bytes for each while it works.
_BATCH_CHARS, _LONGEST_PIECE = 262_144, 1 << 20
#: Laid over the seed of pieces' keys, of which the first of a text takes 1, so that entries of beginnings
#: have keys of their own, and texts that are cut at markers alone others.
_CHAPTERS, _CHAPTERS_AT_MARKERS = 2, 4


class NotCountableError(Exception):
    """A prompt that this model's tokenizer cannot count, and why in one word."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """A text cut into pieces: where they end, what was new, and tokens up to each end."""

    ends: list[int]
    new_bytes: int
    tokens: list[int]


class TokenizerModel:
    """Counts one model's prompts.

    Args:
        tokenizer: the model's; truncation and padding are turned off.
        template: the model's chat template; without one chats cannot be counted.
        markers: special tokens that rendered prompts hold.
        cache_bytes: memory for counts of pieces.
        fast: a faster encoder that was proven to say the same.
        keep_ids: whether `ids` is incremental, too, for 4 bytes a token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
        markers: Iterable[str] = (),
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        fast: Callable[[str], list[int]] | None = None,
        keep_ids: bool = False,
    ) -> None:
        # Batches of one request are small, and the picker has threads of its own.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._template, self._fast, self._keep_ids = tokenizer, template, fast, keep_ids
        self._prefix, self._suffix = _added_around(tokenizer)
        self.first_arguments = {} if template is None else template.first_arguments()
        self._markers = safe_markers(tokenizer, markers)
        self.seams = _proven_seams(tokenizer, self._markers)
        self.cache = PieceCache(cache_bytes)
        self._seed = secrets.randbits(64)
        self.chapter_bytes = CHAPTER_BYTES
        self._new_pieces = 0
        self.distrusted = False

    @property
    def fast(self) -> bool:
        """Whether the faster encoder is in use."""
        return self._fast is not None

    def count(self, canonical: bytes, block_bytes: int, arguments: TemplateArguments = ()) -> CountedPrompt:
        """Tokens of a prompt, and how they spread over its blocks.

        Args:
            canonical: the prompt in frames, not given as token ids.
            block_bytes: bytes of canonical prompt per block.
            arguments: what the client gives the chat template.

        Raises:
            NotCountableError: the template refuses the chat, or there is nothing that renders it.
        """
        content = self._content(canonical)
        texts = self._texts(content, arguments)
        around = 0 if content.messages else len(self._prefix) + len(self._suffix)
        ends: list[int] = []
        tokens: list[int] = []
        position, total, new_bytes = 0, content.media_tokens, 0
        for text in texts:
            walk = self._walk(text)
            new_bytes += walk.new_bytes
            ends += [position + end for end in walk.ends]
            tokens += [total + count for count in walk.tokens]
            position += len(text)
            total += around + (walk.tokens[-1] if walk.tokens else 0)
        curve: list[float] = []
        if not content.media_tokens:  # where media are in the text, templates know and canonical bytes do not
            curve = block_curve(canonical, b"".join(texts), ends, tokens, block_bytes)
        return CountedPrompt(total, curve, new_bytes)

    def rendered(self, canonical: bytes, arguments: TemplateArguments = ()) -> list[bytes]:
        """The texts that a prompt's tokens are made from.

        Raises:
            NotCountableError: as `count`.
        """
        return self._texts(self._content(canonical), arguments)

    def ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text; incremental when they are kept."""
        data = text.encode()
        ends = self.seams.ends(data)
        pieces = self._pieces(data, ends)
        keys = self._keys(pieces)
        packed = [entry if isinstance(entry, bytes) else None for entry in self.cache.find(keys)]
        missing = [number for number, entry in enumerate(packed) if entry is None]
        found = dict(zip(missing, self._encode([(pieces[n], n == 0) for n in missing]), strict=True))
        if self._keep_ids:
            self.cache.add((keys[n], array("I", ids).tobytes()) for n, ids in found.items())
        ids = list(self._prefix) if add_special_tokens else []
        for number, entry in enumerate(packed):
            ids += found[number] if entry is None else array("I", entry)
        return ids + self._suffix if add_special_tokens else ids

    def reference_ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text in one go by tokenizers: what everything else here has to equal."""
        found = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = found[0].ids
        return ids

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
        from epp.tokenizer.template import RenderError  # noqa: PLC0415

        try:
            return [self._template.render(content, arguments).encode("utf-8", "replace")]
        except RenderError as error:
            raise NotCountableError("template") from error

    def _walk(self, text: bytes) -> _Walk:
        """Count a text piece by piece, looking only at what is not known of its beginning."""
        seams = self.seams
        chapters = Chapters(
            text,
            self.cache,
            seed=self._seed ^ (_CHAPTERS_AT_MARKERS if seams.at_markers_alone(text) else _CHAPTERS),
            margin=seams.reach,
            chapter_bytes=self.chapter_bytes,
        )
        known_ends, tokens = chapters.ends, list(chapters.tokens)
        start = known_ends[-1] if known_ends else 0
        ends = seams.ends(text, start)
        pieces = self._pieces(text, ends, start)
        keys = self._keys(pieces, first=not start)
        counts = [
            len(entry) // ID_BYTES if isinstance(entry, bytes) else entry for entry in self.cache.find(keys)
        ]
        missing = [number for number, count in enumerate(counts) if count is None]
        new = [(pieces[number], not start and number == 0) for number in missing]
        if max((len(piece) for piece, _ in new), default=0) > _LONGEST_PIECE:
            raise NotCountableError("content")
        for number, ids in zip(missing, self._encode(new), strict=True):
            counts[number] = len(ids)
        self.cache.add((keys[number], counts[number] or 0) for number in missing)
        known = [count or 0 for count in counts]
        if (
            missing
            and self._audit_due(len(missing))
            and not self._agrees(pieces, known, missing, at_start=not start)
        ):
            return self._walk(text)
        total = tokens[-1] if tokens else 0
        for count in known:
            total += count
            tokens.append(total)
        all_ends = known_ends + ends
        if seams is self.seams:  # else it was distrusted meanwhile
            chapters.remember(all_ends, tokens)
        return _Walk(all_ends, sum(len(piece) for piece, _ in new), tokens)

    def _pieces(self, text: bytes, ends: Sequence[int], start: int = 0) -> list[bytes]:
        return [text[begin:end] for begin, end in zip((start, *ends), ends, strict=False)]

    def _keys(self, pieces: Sequence[bytes], *, first: bool = True) -> list[int]:
        # The first piece has a key of its own: some tokenizers put a space before a text.
        digest, seed = xxhash.xxh3_128_intdigest, self._seed
        return [digest(piece, seed ^ (first and not number)) for number, piece in enumerate(pieces)]

    def _encode(self, pieces: Iterable[tuple[bytes, bool]]) -> Iterator[list[int]]:
        """Ids of each piece, in order."""
        fast, turn = self._fast, 0
        batch: list[str] = []
        for piece, first in pieces:
            text = self.seams.spelled(piece, first=first)
            turn += len(text)
            if fast is not None and len(text) <= _LONGEST_FAST:
                yield fast(text)
                if turn >= _TURN_BYTES:
                    turn = 0
                    time.sleep(0)  # gives up the interpreter's lock
                continue
            batch.append(text)
            if fast is not None or turn >= _BATCH_CHARS:
                yield from encode_all(self._tokenizer, batch)
                batch, turn = [], 0
        if batch:
            yield from encode_all(self._tokenizer, batch)

    def _audit_due(self, new: int) -> bool:
        before = self._new_pieces
        self._new_pieces += new
        return not self.distrusted and before // AUDIT_EVERY != self._new_pieces // AUDIT_EVERY

    def _agrees(
        self, pieces: Sequence[bytes], counts: Sequence[int], missing: Sequence[int], *, at_start: bool
    ) -> bool:
        """Count a new piece and its neighbours again, together and by tokenizers."""
        chosen = missing[self._new_pieces // AUDIT_EVERY * _STRIDE % len(missing)]
        start, end = max(chosen - 1, 0), chosen + 2
        joined = b"".join(pieces[start:end])
        text = self.seams.spelled(joined, first=at_start and start == 0)
        if len(self.reference_ids(text)) == sum(counts[start:end]):
            return True
        log.error("tokens counted by pieces differ from tokens counted at once; from now on counted at once")
        self.distrusted, self._fast, self.seams = True, None, Seams(self._markers)
        self._seed = secrets.randbits(64)  # what other threads still add is not found any more
        self.cache.clear()
        return False


def _proven_seams(tokenizer: Tokenizer, markers: Sequence[str]) -> Seams:
    pairs, drop_space = safe_pairs(tokenizer, drop_space=False), False
    if not any(pair.name == "word" for pair in pairs):
        dropping = safe_pairs(tokenizer, drop_space=True)
        if any(pair.name == "word" for pair in dropping):
            pairs, drop_space = dropping, True
    spanning = spanning_tokens(tokenizer)
    unless = _common_start(spanning).encode()
    if spanning and len(unless) < 2:  # nothing in common that is rare in text: leave the seams out
        pairs = []
    return Seams(markers, pairs, drop_space=drop_space, unless=unless if pairs else b"")


def _common_start(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    first, last = min(texts), max(texts)
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, same))]


def _added_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text that is no chat, e.g. ``<s>``."""
    plain, around = (
        tokenizer.encode_batch_fast(["a"], add_special_tokens=add)[0].ids for add in (False, True)
    )
    for start in range(len(around) - len(plain) + 1):
        if around[start : start + len(plain)] == plain:
            return around[:start], around[start + len(plain) :]
    return [], []
