"""Chances of a right answer: what was seen counts, what was not is nobody's advantage; the file is strict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epp.config.capability import chances_of, parse_capability
from epp.errors import ConfigError
from epp.signals.capability import Capability
from epp.types import RequestInfo, SuccessCell, SuccessRates

FILE = """
models:
  good:
    - {language: en, bucket_tokens: 4096, success: 0.9, low: 0.8, high: 0.95, rows: 50}
    - {language: en, bucket_tokens: 4096, success: 0.3, task: summary}
  bad:
    - {language: en, bucket_tokens: 4096, success: 0.2}
"""


def table(text: str = FILE) -> Capability:
    capability = Capability()
    capability.replace(chances_of(parse_capability(text, "capability.yaml")))
    return capability


def chances(
    models: list[str], language: str = "en", task: str = "", tokens: int = 4000
) -> tuple[object, object]:
    ask = RequestInfo(language=language, task=task, prompt_tokens=tokens)
    found = table().success(ask, tuple(models), len(models))
    assert found is not None
    return found.values.tolist(), None if found.unknown is None else found.unknown.tolist()


def test_a_model_that_nobody_tested_is_as_bad_as_the_worst() -> None:
    assert chances(["good", "new", "bad"]) == ([0.9, 0.2, 0.2], [False, True, False])


@pytest.mark.parametrize(("language", "tokens"), [("ja", 4000), ("en", 16_000), ("en", 1000), ("", 4000)])
def test_beyond_what_was_seen_nothing_is_said(language: str, tokens: int) -> None:
    assert chances(["good", "bad"], language=language, tokens=tokens) == ([1.0, 1.0], [True, True])


def test_a_task_has_its_own_chances_where_it_was_tested() -> None:
    assert chances(["good", "bad"], task="summary") == ([0.3, 0.2], None)
    assert chances(["good"], task="unheard of") == ([0.9], None)
    assert (table().task("summary"), table().task("unheard of")) == ("summary", "")


def test_who_failed_says_how_hard_the_question_is() -> None:
    by_model = {
        name: {SuccessCell("en", 4096): chance} for name, chance in (("a", 0.9), ("b", 0.5), ("c", 0.5))
    }
    ask, capability = RequestInfo(language="en", prompt_tokens=4000), Capability()

    def after(spread: float, *tried: str) -> list[float]:
        capability.replace(SuccessRates(by_model, spread))
        found = capability.success(replace(ask, tried_models=tried), ("a", "b", "c", "new"), 4)
        assert found is not None
        return [round(chance, 3) for chance in found.values.tolist()]

    assert after(0.0, "b") == after(2.0) == after(2.0, "unheard of") == [0.9, 0.5, 0.5, 0.5]
    failed, better = after(2.0, "b"), after(2.0, "a")
    assert (failed[1], better[0]) == (0.5, 0.9)  # nobody knows whether asking again helps
    assert better[2] < failed[2] < 0.4  # that a better one failed says more
    assert after(2.0, "a", "b")[2] < better[2]
    assert failed[3] == failed[2]  # the unknown is as bad as the worst


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("models: {a: [{language: en, bucket_tokens: 4096, sucess: 0.5}]}", "did you mean 'success'"),
        ("models: {a: [{language: en, bucket_tokens: 4096, success: 1.5}]}", "success"),
        ("models: {a: [{language: en, bucket_tokens: 4096, success: 0.5, low: 0.6}]}", "not within low and high"),
        ("models: {a: [{language: en, bucket_tokens: 5000, success: 0.5}]}", "power of two"),
        ("models: {a: [{language: en, bucket_tokens: 4096, success: .nan}]}", "success"),
        ("version: 2\nmodels: {}", "version 2"),
        ("models: {a: [{language: en, bucket_tokens: 4096, success: 0.5}, {language: en, bucket_tokens: 4096, success: 0.5}]}",
         "listed twice"),
        ("models: {a: [{language: en", "valid YAML"),
        ("models: {}\nease_spread: -1", "ease_spread"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where_and_how(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_capability(text, "capability.yaml")
