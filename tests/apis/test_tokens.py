from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.openai import Completion
from epp.apis.types import ParsedRequest
from epp.tokens import estimate
from epp.tokens.estimate import DEFAULT_BYTES_PER_TOKEN, EstimateCounter


def request(data: bytes, model: str = "m") -> ParsedRequest:
    return ParsedRequest("api", model, data, False, None, "", "", False)


@pytest.mark.parametrize(
    ("model", "ratio"),
    [
        ("m", DEFAULT_BYTES_PER_TOKEN),
        ("Qwen/Qwen3-8B", DEFAULT_BYTES_PER_TOKEN),
        ("meta-llama/Llama-3.1-8B", DEFAULT_BYTES_PER_TOKEN),
        ("meta-llama/Llama-2-7b-chat-hf", 3.5),
        ("openai/gpt-oss-120b", 4.4),
    ],
)
def test_a_model_starts_at_its_familys_prior(model: str, ratio: float) -> None:
    counter = EstimateCounter()
    assert counter.bytes_per_token(model) == ratio
    assert counter.count(request(b"x" * 4400, model)) == round(4400 / ratio)


def test_token_ids_are_counted_not_estimated() -> None:
    counter = EstimateCounter()
    for body, tokens in ((b"[1,2,3]", 3), (b"[[1,2],[3],[4,5]]", 5), (b"[[]]", 1)):
        parsed = Completion.parse(b'{"model":"m","prompt":%s}' % body, {})
        assert counter.count(parsed) == tokens


def test_the_ratio_goes_to_what_engines_count() -> None:
    counter = EstimateCounter()
    for _ in range(400):
        counter.observe("m", 30_000, 10_000)
    assert counter.bytes_per_token("m") == pytest.approx(3.0, rel=0.01)
    assert counter.count(request(b"x" * 3000)) == pytest.approx(1000, rel=0.01)
    assert counter.bytes_per_token("other") == DEFAULT_BYTES_PER_TOKEN


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(64, 10**9)), max_size=300))
def test_no_history_leads_out_of_bounds(history: list[tuple[int, int]]) -> None:
    counter = EstimateCounter()
    for size, tokens in history:
        counter.observe("m", size, tokens)
    assert 1.0 <= counter.bytes_per_token("m") <= 16.0
    assert counter.count(request(b"x")) == 1


def test_models_are_remembered_up_to_a_bound_the_least_recently_seen_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimate, "MAX_MODELS", 2)
    counter = EstimateCounter()
    for model in ("a", "b", "a", "c"):
        counter.observe(model, 30_000, 10_000)
    learned = [model for model in "abc" if counter.bytes_per_token(model) != DEFAULT_BYTES_PER_TOKEN]
    assert learned == ["a", "c"]
