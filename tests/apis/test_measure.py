from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.registry import affinity_key
from epp.apis.types import CountedPrompt, MeasuredPrompt, ParsedRequest
from epp.prefix_cache import blocks
from epp.prefix_cache.blocks import BlockHasher
from epp.tokens.estimate import EstimateCounter

COUNTER = EstimateCounter()
HASHER = BlockHasher(b"a secret of the deployment", block_bytes=32)


def request(data: bytes, *, model: str = "m", salt: str = "", session: str = "") -> ParsedRequest:
    return ParsedRequest("api", model, data, False, None, session, salt, False)


def measure(data: bytes, *, hasher: BlockHasher = HASHER, tenant: str = "", **fields: str) -> MeasuredPrompt:
    return hasher.measure(request(data, **fields), COUNTER, tenant)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_blocks_are_equal_exactly_as_far_as_the_bytes_are(head: bytes, one: bytes, two: bytes) -> None:
    a, b = head + one, head + two
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    blocks_a, blocks_b = measure(a).blocks, measure(b).blocks
    equal = 0
    while equal < min(len(blocks_a), len(blocks_b)) and blocks_a[equal] == blocks_b[equal]:
        equal += 1
    assert equal == min(same // 32, len(blocks_a), len(blocks_b))
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


def test_a_block_is_hashed_with_all_before_it_as_its_seed() -> None:
    data = bytes(range(256)) * 8
    value = measure(data).namespace ^ HASHER._seed
    for number, block in enumerate(measure(data).blocks):
        value = xxhash.xxh3_64_intdigest(data[number * 32 : number * 32 + 32], value)
        assert block == value


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


def test_blocks_cover_the_tokens_of_whole_blocks_only() -> None:
    prompt = measure(b"x" * 100)
    assert prompt.prompt_tokens == 25
    assert len(prompt.blocks) * prompt.block_tokens == 24.0


def test_a_prompt_with_bytes_has_a_token_though_a_tokenizer_counts_none() -> None:
    prompt = HASHER.measure(request(b"x" * 100), COUNTER, "", CountedPrompt(0, [0.0, 0.0, 0.0]))
    assert prompt.prompt_tokens == 1
    assert prompt.block_tokens == 0.32, "others divide by it"
    assert HASHER.measure(request(b""), COUNTER, "", CountedPrompt(0, [])).prompt_tokens == 0


def test_the_estimate_has_a_prior_per_model() -> None:
    assert COUNTER.count(request(b"x" * 400)) == 100
    assert COUNTER.count(request(b"x" * 350, model="llama-2")) == 100
    assert COUNTER.count(request(b"x")) == 1
    assert COUNTER.count(request(b"")) == 0


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
        return affinity_key(request(data, session=session), measure(data))

    head = b"h" * 16 * 32
    assert key(head + b"a" * 64) == key(head + b"b" * 64) != key(b"i" + head)
    assert key(head, session="s") == "s"
    assert key(b"short") == ""
