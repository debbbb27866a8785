"""Shared ids become shared bytes, and nothing else does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp_lab.compare.text import chat_messages, prompt_text
from epp_lab.compare.trace import TraceRequest


def request(tokens: int, ids: tuple[int, ...], turns: tuple[int, ...] = (), size: int = 16) -> TraceRequest:
    return TraceRequest(0.0, "s", "u", tokens, 8, ids, size, turn_starts=turns)


def flat(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<{role}>{content}" for role, content in messages)


def chat(r: TraceRequest) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in chat_messages(r)]


@given(
    shared=st.lists(st.integers(0, 9), max_size=6),
    left=st.lists(st.integers(10, 19), max_size=4),
    right=st.lists(st.integers(20, 29), max_size=4),
    cut=st.integers(0, 15),
)
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


def test_known_turns_alternate_and_cut_where_told() -> None:
    messages = chat(request(64, (1, 2, 3, 4), turns=(10, 30, 50)))
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user"]
    assert [len(content) for _, content in messages] == [39, 79, 79, 55]  # the leading space is dropped
    assert "".join(f" {content}" for _, content in messages) == prompt_text(request(64, (1, 2, 3, 4)))


@given(ids=st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True), extra=st.integers(1, 60))
def test_without_known_turns_a_longer_prompt_still_continues_the_shorter(ids: list[int], extra: int) -> None:
    short = chat(request(64 * len(ids), tuple(ids), size=64))
    longer = chat(request(64 * len(ids) + extra, (*ids, 1000), size=64))
    assert longer[-1][0] == short[-1][0] == "user"
    own = short[:-1] if short[-1][1] == "Go on." else short
    assert flat(longer).startswith(flat(own))
