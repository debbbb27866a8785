"""What picker and engines see of a load's prompts, made from block ids without rendering any text.

Owns the hashing: ids become keyed 64-bit hashes, one key for the picker and another for the engines, which
are strangers to each other. Ids are prefix-cumulative, so a hash of one id stands for all before it. Also
finds out what a request's answer becomes: blocks of the prompt that goes on from it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from epp.types import RequestInfo
from epp_lab.sim.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp_lab.compare.trace import TraceRequest


_PICKER_KEY: Final = 0x9E3779B97F4A7C15
_ENGINE_KEY: Final = 0xC2B2AE3D27D4EB4F


class Prompts:
    """All prompts of one load.

    Args:
        requests: the load.

    Raises:
        ValueError: requests differ in block size.
    """

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        sizes = {request.block_tokens for request in requests}
        if len(sizes) > 1:
            raise ValueError(f"one load has blocks of one size, not {sorted(sizes)}")
        self.block_tokens = sizes.pop() if sizes else 1
        self._requests = requests
        # Attempts at one question are many requests with one prompt: its blocks are hashed once.
        spans: dict[int, slice] = {}
        ids: list[int] = []
        for path in (request.block_ids for request in requests):
            if id(path) not in spans:
                spans[id(path)] = slice(len(ids), len(ids) + len(path))
                ids += (block % 2**64 for block in path)
        self._spans = [spans[id(request.block_ids)] for request in requests]
        array = np.array(ids, np.uint64)
        self._picker, self._engine = _mix(array, _PICKER_KEY), _mix(array, _ENGINE_KEY)
        self._goes_on = _continuations(requests)

    def parents(self) -> dict[int, int]:
        """Return the block before each, of those that are not the first; as engines see them."""
        found: dict[int, int] = {}
        for span in {(span.start, span.stop) for span in self._spans}:
            found.update(pairwise(reversed(self._engine[slice(*span)].tolist())))
        return found

    def ids(self, index: int) -> bytes:
        """Return the token ids of a prompt's full blocks, 4 bytes each."""
        full = self._requests[index].prompt_tokens // self.block_tokens
        return token_ids(self._slice(self._engine, index)[:full], self.block_tokens).tobytes()

    def measured(self, index: int) -> RequestInfo:
        """Return the prompt as the picker measures it: full blocks only."""
        request = self._requests[index]
        full = request.prompt_tokens // self.block_tokens
        blocks = self._slice(self._picker, index)[:full]
        return RequestInfo(
            prompt_tokens=request.prompt_tokens, blocks=blocks, block_tokens=float(self.block_tokens)
        )

    def job(self, index: int, *, miss: bool) -> Job:
        """Return the request as an engine sees it."""
        request = self._requests[index]
        answer: Sequence[int] = ()
        after = self._goes_on[index]
        if after is not None:
            first = request.prompt_tokens // self.block_tokens
            last = -(-(request.prompt_tokens + request.output_tokens) // self.block_tokens)
            answer = self._slice(self._engine, after)[first:last]
        blocks = self._slice(self._engine, index)
        return Job(index, request.prompt_tokens, request.output_tokens, blocks, answer, miss)

    def _slice(self, hashes: NDArray[np.uint64], index: int) -> list[int]:
        blocks: list[int] = hashes[self._spans[index]].tolist()
        return blocks


def token_ids(blocks: Sequence[int], block_tokens: int) -> NDArray[np.uint32]:
    """Invent the token ids of blocks, a row each: the halves of the hash, over and over."""
    halves = np.array(blocks, np.uint64).view(np.uint32).reshape(-1, 2)
    return np.tile(halves, -(-block_tokens // 2))[:, :block_tokens]


def _mix(ids: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al., 2014): a bijection: different ids stay so."""
    value = ids + np.uint64(key)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


def _continuations(requests: Sequence[TraceRequest]) -> list[int | None]:
    """For each request the next one of its session whose prompt holds this prompt and its answer.

    That is one whose ids go on from these. Where messages are known, one of them must start where this
    prompt ends: that is the answer; otherwise being long enough for it must do.
    """
    goes_on: list[int | None] = [None] * len(requests)
    open_turn: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        waiting = open_turn.setdefault(request.session, [])
        left: list[int] = []
        for before in waiting:
            if _extends(requests[before], request):
                goes_on[before] = index
            elif len(left) < _REMEMBERED_TURNS:
                left.append(before)
        open_turn[request.session] = [index, *left]
    return goes_on


_REMEMBERED_TURNS: Final = 4  # requests of a session whose answers may still be taken up


def _extends(earlier: TraceRequest, later: TraceRequest) -> bool:
    end = earlier.prompt_tokens
    if later.prompt_tokens < end + earlier.output_tokens or not earlier.block_ids:
        return False
    count = len(earlier.block_ids)
    if len(later.block_ids) < count or later.block_ids[count - 1] != earlier.block_ids[-1]:
        return False  # ids are cumulative: the last one speaks for all
    return not later.turn_starts or end in later.turn_starts
