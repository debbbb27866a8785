from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.types import ParsedRequest
from epp.prefix_cache import blocks
from epp.prefix_cache.blocks import BlockHasher
from epp.tokens.estimate import EstimateCounter

if TYPE_CHECKING:
    from epp.types import RequestInfo

COUNTER = EstimateCounter()
HASHER = BlockHasher(b"a secret of the deployment", block_bytes=32)


def request(data: bytes, *, model: str = "m", salt: str = "", session: str = "") -> ParsedRequest:
    return ParsedRequest("api", model, data, False, None, session, salt, False)


def measure(data: bytes, *, hasher: BlockHasher = HASHER, tenant: str = "", **fields: str) -> RequestInfo:
    return hasher.measure(request(data, **fields), COUNTER, tenant)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_blocks_are_equal_exactly_as_far_as_the_bytes_are(head: bytes, one: bytes, two: bytes) -> None:
    a, b = b"\xffP" + head + one, b"\xffP" + head + two
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    blocks_a, blocks_b = measure(a).blocks, measure(b).blocks
    equal = 0
    while equal < min(len(blocks_a), len(blocks_b)) and blocks_a[equal] == blocks_b[equal]:
        equal += 1
    assert equal == (len(blocks_a) if a == b else min(same // 32, len(blocks_a), len(blocks_b)))
    assert not set(blocks_a[equal:]) & set(blocks_b), "what comes after a difference never meets again"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 700), st.integers(0, 255)), max_size=8))
def test_what_is_remembered_of_prompts_before_changes_no_hash(turns: list[tuple[int, int, int]]) -> None:
    """Conversations go on, branch anywhere and push each other out of memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_GROUPS", 3)
        hasher, texts = BlockHasher(b"a secret of the deployment", block_bytes=4), [b""] * 4
        for which, keep, byte in turns:
            texts[which] = texts[which][:keep] + bytes([byte]) * 300
            fresh = BlockHasher(b"a secret of the deployment", block_bytes=4)
            assert measure(texts[which], hasher=hasher) == measure(texts[which], hasher=fresh)


def test_namespaces_share_nothing() -> None:
    data = b"x" * 320
    prompts = [
        measure(data),
        measure(data, model="other"),
        measure(data, salt="s"),
        measure(data, tenant="t"),
        measure(data, hasher=BlockHasher(b"another secret here", 32)),
        measure(data, salt="t"),
        measure(data, model="m\x00", salt=""),
    ]
    seen = [block for prompt in prompts for block in prompt.blocks]
    assert len(seen) == len(set(seen)) == 70


def test_names_outside_of_the_process_are_keyed_and_stable() -> None:
    block = measure(b"x" * 64).blocks[0]
    again = BlockHasher(b"a secret of the deployment", 32)
    assert (
        HASHER.export_id(block)
        == again.export_id(block)
        != BlockHasher(b"guess guess guess", 32).export_id(block)
    )


def test_affinity_keys_on_the_session_else_on_the_first_blocks() -> None:
    def key(data: bytes, session: str = "") -> str:
        return measure(data, session=session).affinity_key

    head = b"h" * 16 * 32
    assert key(head + b"a" * 64) == key(head + b"b" * 64) != key(b"i" + head)
    assert key(head, session="s") == key(b"", session="s") == HASHER.export_name("s")
    assert key(b"short") == key(b"short") != key(b"other")
    assert key(b"") == ""


def test_equal_prompts_shorter_than_a_block_share_one_and_longer_ones_none() -> None:
    """As llm-d's hash of the last partial block keeps them together."""
    short = measure(b"hello")
    assert short.blocks == measure(b"hello").blocks != measure(b"hallo").blocks
    assert short.tokens_before(len(short.blocks)) == short.prompt_tokens
    assert not set(short.blocks) & set(measure(b"hello" + b"x" * 32).blocks)
    assert len(measure(b"x" * 33).blocks) == 1, "what is left beyond a full block is no block"
    assert measure(b"").blocks == []
