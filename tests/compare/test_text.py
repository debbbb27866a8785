"""Shared ids become shared bytes, and nothing else does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.lab.compare.text import chat_messages, prompt_text
from epp.lab.compare.trace import TraceRequest


def request(tokens: int, ids: tuple[int, ...], turns: tuple[int, ...] = (), size: int = 16) -> TraceRequest:
    return TraceRequest(0.0, "s", "u", tokens, 8, ids, size, turn_starts=turns)


def flat(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<{role}>{content}" for role, content in messages)


def chat(r: TraceRequest) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in chat_messages(r)]


@given(
    shared=st.lists(st.integers(0, 9), max_size=6),
    left=st.lists(st.integers(10, 19), max_size=4),
    right=st.lists(st.integers(20, 29), max_size=4),
    cut=st.integers(0, 15),
)
@settings(max_examples=60)
def test_common_ids_are_common_bytes_and_others_are_not(
    shared: list[int], left: list[int], right: list[int], cut: int
) -> None:
    a, b = ((*shared, *side) for side in (left, right))
    text_a = prompt_text(request(max(1, 16 * len(a) - cut), a))
    text_b = prompt_text(request(max(1, 16 * len(b)), b))
    common = 4 * min(16 * len(shared), max(1, 16 * len(a) - cut))
    if shared:
        assert text_a[:common] == text_b[:common]
    if left and right:
        assert text_a[common : common + 64] != text_b[common : common + 64]


def test_four_bytes_a_token_ids_or_not() -> None:
    assert len(prompt_text(request(100, (1, 2)))) == 400
    assert len(prompt_text(request(30, (1, 2)))) == 120
    assert prompt_text(request(100, (1, 2)))[128:] != prompt_text(request(101, (1, 2)))[128:400]


def test_a_partial_block_is_the_head_of_the_whole_one() -> None:
    assert prompt_text(request(32, (1, 2))).startswith(prompt_text(request(21, (1, 2))))


def test_known_turns_alternate_and_cut_where_told() -> None:
    messages = chat(request(64, (1, 2, 3, 4), turns=(10, 30, 50)))
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user"]
    assert [len(content) for _, content in messages] == [39, 79, 79, 55]  # the leading space is dropped
    assert "".join(f" {content}" for _, content in messages) == prompt_text(request(64, (1, 2, 3, 4)))


def test_an_extended_prompt_repeats_the_messages_before_it() -> None:
    before = chat(request(40, (1, 2, 3), turns=(10,)))
    after = chat(request(90, (1, 2, 3, 4, 5, 6), turns=(10, 40, 56)))
    assert after[: len(before)] == before


def test_a_received_answer_takes_the_place_of_the_invented_one() -> None:
    r = request(90, (1, 2, 3, 4, 5, 6), turns=(10, 40, 56))
    told = chat_messages(r, {40: 'as it "was"', 10: "not an answer", 99: "elsewhere"})
    assert [(m.role, m.content) for m in told[2:3]] == [("assistant", 'as it "was"')]
    assert [told[i] for i in (0, 1, 3)] == [chat_messages(r)[i] for i in (0, 1, 3)]


@given(ids=st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True), extra=st.integers(1, 60))
@settings(max_examples=60)
def test_without_known_turns_a_longer_prompt_still_continues_the_shorter(ids: list[int], extra: int) -> None:
    short = chat(request(64 * len(ids), tuple(ids), size=64))
    longer = chat(request(64 * len(ids) + extra, (*ids, 1000), size=64))
    assert longer[-1][0] == short[-1][0] == "user"
    own = short[:-1] if short[-1][1] == "Go on." else short
    assert flat(longer).startswith(flat(own))


def test_a_prompt_without_ids_shares_nothing_between_sessions() -> None:
    a = TraceRequest(0.0, "a", "u", 50, 8, (), 16)
    b = TraceRequest(0.0, "b", "u", 50, 8, (), 16)
    assert prompt_text(a)[:40] != prompt_text(b)[:40]
    assert [m.role for m in chat_messages(a)][-1] == "user"
