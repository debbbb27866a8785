"""Canonical bytes to blocks: chained, keyed hashes that tell equal prefixes and nothing else.

Owns the hashing. Threat model: block hashes live in the memory of this process only, which also holds the
key, so a fast keyed hash (XXH3 with a secret seed) is enough to keep a client from steering collisions.
Whatever leaves the process (`export_id`) is keyed BLAKE2b: without the secret nobody can test a guess on it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import xxhash
from msgspec.structs import replace

from epp.apis.canonical import split_prompts
from epp.apis.language import language_of
from epp.types import RequestInfo

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest, TokenCount
    from epp.tokens.estimate import EstimateCounter


#: Canonical bytes that one exported id stands for, as near as whole blocks come: 256 to 512 tokens at 3 to 6
#: bytes a token. Counted in blocks, not tokens, so that all turns of a conversation cut at the same places.
COARSE_BYTES = 1536
#: Blocks cut in one call, and remembered together.
_GROUP = 32
#: Groups whose hashes are remembered: 1.9 KB for 8 KB of prompt, so 16 MB for 16 million tokens.
_GROUPS = 8192
#: Exported ids that are remembered, some 250 bytes each: the next turn of a conversation repeats its ids.
_EXPORTED = 16_384
#: Namespaces that are remembered, of names of so many characters in all.
_REMEMBERED, _SHORT = 256, 256
#: Blocks that name a conversation which gives no session: about a thousand tokens.
AFFINITY_BLOCKS = 16
#: Prompts of one request that are hashed and looked up one by one.
MAX_PROMPTS = 64


class BlockHasher:
    """Measures prompts under one secret.

    Args:
        secret: the deployment's secret; replicas of the picker that share it hash alike.
        block_bytes: bytes of canonical prompt per block.

    Attributes:
        coarse_blocks: blocks that one of the `coarse_ids` stands for.
        key_id: names secret and block size without telling them: ids under one key id can be compared.
    """

    def __init__(self, secret: bytes, block_bytes: int = 256) -> None:
        self._block_bytes = block_bytes
        self._one, self._many = struct.Struct(f"{block_bytes}s"), struct.Struct(f"{block_bytes}s" * _GROUP)
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"epp blocks").digest()
        self._seed = int.from_bytes(hashlib.blake2b(self._key, digest_size=8, person=b"epp seed").digest())
        self._keyed = hashlib.blake2b(digest_size=8, key=self._key)
        self._keyed_names = hashlib.blake2b(digest_size=8, key=self._key, person=b"epp names")
        #: A block's name outside of this process.
        self.export_id = lru_cache(_EXPORTED)(self._export_id)
        self._remembered = lru_cache(_REMEMBERED)(self._namespace)
        self._groups: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self.coarse_blocks = max(1, round(COARSE_BYTES / block_bytes))
        self.key_id = hashlib.blake2b(
            block_bytes.to_bytes(8), digest_size=8, key=self._key, person=b"epp key id"
        ).hexdigest()

    def measure(
        self,
        request: ParsedRequest,
        counter: EstimateCounter,
        tenant: str = "",
        counted: TokenCount | None = None,
        **known: Any,
    ) -> RequestInfo:
        """Describe a request by what its body says, its prompt counted and hashed.

        Args:
            request: the canonical request.
            counter: counts its tokens.
            tenant: separates cache namespaces beside model and salt.
            counted: what a tokenizer has counted already; the counter is not asked then.
            known: fields of the description that its body does not say.
        """
        canonical, size = request.canonical, len(request.canonical)
        tokens, token_offsets = (counter.count(request), ()) if counted is None else counted[:2]
        if size:
            tokens = max(tokens, 1)  # a tokenizer counts none in 200 empty texts; others divide by a block's
        namespace = self._namespace_of(request.model, request.cache_salt, tenant)
        block_bytes = min(self._block_bytes, size)
        block_tokens = tokens * block_bytes / size if size else float(self._block_bytes)
        blocks = self._chain(namespace, canonical)
        rest = canonical[len(blocks) * self._block_bytes :]
        # Decisions are recorded: no client's word goes into one as it is.
        session = self.export_name(request.session) if request.session else ""
        first = f"{blocks[min(AFFINITY_BLOCKS, len(blocks)) - 1]:016x}" if blocks else ""
        info = RequestInfo(
            api=request.api,
            model=request.model,
            prompt_tokens=tokens,
            max_output_tokens=request.max_output_tokens,
            affinity_key=session or (self.export_name(first) if first else ""),
            session=session,
            program=self.export_name(request.program) if request.program else "",
            stream=request.stream,
            choices=request.choices,
            sequences=request.sequences * request.prompts,
            prompts=request.prompts,
            readable_tokens=request.readable_tokens,
            rewritten_from=request.rewritten_from,
            text_bytes=size if request.text_only else 0,
            optional=request.optional,
            dropped=request.rendering.dropped,
            language=language_of(canonical),
            namespace=namespace,
            blocks=blocks,
            prompt_hash=xxhash.xxh3_64_intdigest(rest, blocks[-1]) if blocks else 0,
            block_tokens=block_tokens,
            token_offsets=token_offsets,
            media=tuple(map(self.export_name, request.media)),
            **known,
        )
        if request.prompts > 1:
            info = self._divided(info, canonical)
        if request.kept_tokens is not None:
            info = _cut(info, request.kept_tokens, keeps_start=request.keeps_start)
        return info

    def _divided(self, info: RequestInfo, canonical: bytes) -> RequestInfo:
        """Describe each of several prompts by itself."""
        pieces = split_prompts(canonical) if info.prompts <= MAX_PROMPTS else []
        if len(pieces) < 2:
            return replace(info, context_tokens=math.ceil(info.prompt_tokens / info.prompts))
        byte_tokens = info.prompt_tokens / len(canonical)
        first, *more = (
            RequestInfo(
                prompt_tokens=math.ceil(byte_tokens * len(piece)),
                namespace=info.namespace,
                blocks=self._chain(info.namespace, piece),
                block_tokens=byte_tokens * min(self._block_bytes, len(piece)),
            )
            for piece in pieces
        )
        return replace(
            info,
            blocks=first.blocks,
            block_tokens=first.block_tokens,
            token_offsets=(),
            more=tuple(more),
            context_tokens=max(one.prompt_tokens for one in (first, *more)),
        )

    def _export_id(self, block: int) -> str:
        keyed = self._keyed.copy()  # a third of what a new one costs
        keyed.update(block.to_bytes(8))
        return keyed.hexdigest()

    def coarse_ids(self, prompt: RequestInfo) -> list[str]:
        """Return a prompt's exported names, one per run of `coarse_blocks`, each covering all before.

        What is left beyond the last whole run has no id.
        """
        step = self.coarse_blocks
        return list(map(self.export_id, prompt.blocks[step - 1 :: step]))

    def export_name(self, text: str) -> str:
        """Return a client's word, such as a session id, keyed: equal texts, equal names."""
        keyed = self._keyed_names.copy()
        keyed.update(text.encode(errors="backslashreplace"))
        return keyed.hexdigest()

    def _namespace_of(self, *names: str) -> int:
        # clients choose two of the names: long ones are not remembered
        find = self._remembered if sum(map(len, names)) <= _SHORT else self._namespace
        return find(*names)

    def _namespace(self, model: str, salt: str, tenant: str) -> int:
        parts = b"".join(
            len(part).to_bytes(4) + part for part in (model.encode(), salt.encode(), tenant.encode())
        )
        return int.from_bytes(hashlib.blake2b(parts, digest_size=8, key=self._key).digest())

    def _chain(self, namespace: int, data: bytes) -> list[int]:
        """Hash the full blocks; a prompt shorter than one is a block of its own, for equal prompts."""
        digest, count = xxhash.xxh3_64_intdigest, len(data) // self._block_bytes
        if data and not count:
            return [digest(data, namespace ^ self._seed)]
        group_bytes = self._many.size
        grouped = count // _GROUP * group_bytes
        # Each block is seeded by the hash before it: equal hashes mean equal bytes from the start. A group of
        # blocks seeded alike is known by one hash, a tenth of the work: a conversation repeats its turns.
        value, blocks, view = namespace ^ self._seed, list[int](), memoryview(data)
        groups = self._groups
        for start in range(0, grouped, group_bytes):
            group = view[start : start + group_bytes]
            key = digest(group, value)
            known = groups.get(key)
            if known is None:
                hashes = [value := digest(block, value) for block in self._many.unpack(group)]
                groups[key] = tuple(hashes)
                blocks += hashes
            else:
                groups.move_to_end(key)
                blocks += known
                value = blocks[-1]
        while len(groups) > _GROUPS:
            groups.popitem(last=False)
        rest = view[grouped : count * self._block_bytes]
        blocks += [value := digest(block, value) for (block,) in self._one.iter_unpack(rest)]
        return blocks


def _cut(info: RequestInfo, kept_tokens: int, *, keeps_start: bool) -> RequestInfo:
    """Describe prompts that an engine cuts to a length.

    Of one whose end it keeps, nobody knows where it begins: it shares nothing. Nor do several of which one is
    cut.
    """
    if kept_tokens < 0:
        return replace(info, context_tokens=0, text_bytes=0)
    longest = info.prompt_tokens if info.context_tokens is None else info.context_tokens
    if longest <= kept_tokens:
        return info
    shares = keeps_start and info.prompts == 1
    return replace(
        info,
        prompt_tokens=max(min(info.prompt_tokens, kept_tokens * info.prompts), 1),
        blocks=info.blocks[: int(kept_tokens / info.block_tokens)] if shares else (),
        more=(),
        readable_tokens=info.readable_tokens if shares else 0,
        context_tokens=kept_tokens,
        text_bytes=0,
    )
