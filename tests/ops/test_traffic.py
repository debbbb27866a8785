"""Whether terms can pay, from records of traffic made for the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.config.load import parse_config
from epp.ops.doctor.context import ENOUGH, Context, Severity
from epp.ops.doctor.traffic import measure, worth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from epp.ops.doctor.context import Finding

BLOCK = 384.0


def records(
    count: int, *, tokens: int, shared_blocks: int, rtts: list[float], ttft_ms: float = 500.0
) -> Iterator[dict[str, Any]]:
    """Requests of which all begin with the same blocks and go on with their own."""
    for number in range(count):
        own = int(tokens // BLOCK) - shared_blocks
        yield {
            "kind": "decision",
            "request": {"prompt_tokens": tokens},
            "signals": {"rtt_ms": rtts},
            "unknown": {},
            "blocks": [
                *(f"shared-{at}" for at in range(shared_blocks)),
                *(f"{number}-{at}" for at in range(own)),
            ],
            "block_tokens": BLOCK,
        }
        yield {"kind": "outcome", "ttft_ms": ttft_ms, "cached_tokens": None, "endpoint": "a:1"}


NEAR, FAR = [0.4, 0.5, 0.6], [20.0, 100.0, 200.0]
LONG = {"tokens": 8000, "shared_blocks": 15}
SHORT = {"tokens": 200, "shared_blocks": 0}


def said(policy: str, made: Iterable[dict[str, Any]]) -> list[Finding]:
    config = parse_config(f"policy: {{name: {policy}}}", "epp.yaml")
    return list(worth(Context(config=config, traffic=measure(made))))


@pytest.mark.parametrize(
    ("policy", "shape", "better"),
    [
        ("gorgo", {**SHORT, "rtts": NEAR}, "least-request"),
        ("llm-d", {**SHORT, "rtts": NEAR}, "least-request"),
        ("gorgo", {**SHORT, "rtts": FAR}, None),
        ("llm-d", {**SHORT, "rtts": FAR}, "gorgo"),
        ("least-request", {**SHORT, "rtts": NEAR}, None),
        ("least-request", {**SHORT, "rtts": FAR}, "gorgo"),
        ("gorgo", {**LONG, "rtts": NEAR}, None),
        ("gorgo", {**LONG, "rtts": FAR}, None),
        ("llm-d", {**LONG, "rtts": NEAR}, None),
        ("llm-d", {**LONG, "rtts": FAR}, "gorgo"),
        ("least-request", {**LONG, "rtts": NEAR}, "gorgo"),
        ("session-affinity", {**LONG, "rtts": NEAR}, None),
        # long prompts that nobody sends twice are no better than short ones
        ("gorgo", {"tokens": 8000, "shared_blocks": 0, "rtts": NEAR}, "least-request"),
        # 8 ms matter beside a TTFT of 50 ms and not beside one of 5 s
        ("gorgo", {**SHORT, "rtts": [1.0, 9.0], "ttft_ms": 50.0}, None),
        ("gorgo", {**SHORT, "rtts": [1.0, 9.0], "ttft_ms": 5000.0}, "least-request"),
        ("gorgo", {**SHORT, "rtts": [0.5]}, "least-request"),
    ],
)
def test_the_better_policy_is_named_where_a_term_cannot_pay(
    policy: str, shape: dict[str, Any], better: str | None
) -> None:
    found = [each for each in said(policy, records(200, **shape)) if each.severity is not Severity.NOTE]
    assert len(found) == (better is not None)
    if better:
        assert found[0].severity is Severity.ADVICE
        assert f"use policy {better}" in found[0].fix


def test_few_requests_say_nothing() -> None:
    [finding] = said("gorgo", records(ENOUGH - 1, **SHORT, rtts=NEAR))
    assert finding.severity is Severity.NOTE
    assert "too few" in finding.what


def test_reuse_is_what_was_sent_before_whoever_served_it() -> None:
    traffic = measure(records(101, tokens=3840, shared_blocks=5, rtts=FAR))
    assert traffic.reuse == pytest.approx(0.5 * 100 / 101)
    assert traffic.reusable_tokens == pytest.approx(1920 * 100 / 101)
    assert traffic.spread_ms == 180.0
    assert traffic.ttft_ms == 500.0


def test_unknown_rtts_do_not_make_a_distance() -> None:
    made = list(records(3, tokens=400, shared_blocks=0, rtts=[1.0, 500.0]))
    for record in made:
        if record["kind"] == "decision":
            record["unknown"] = {"rtt_ms": [1]}
    assert measure(made).spread_ms == 0.0


def test_requests_without_a_prompt_and_answers_without_a_count_are_left_out() -> None:
    made = list(records(2, tokens=400, shared_blocks=0, rtts=FAR))
    made[0]["request"]["prompt_tokens"] = 0
    made[3]["cached_tokens"] = 0
    traffic = measure([{"kind": "file"}, *made])
    assert traffic.requests == 1
    assert traffic.cached_known == {"a:1"}, "0 is a count"


def test_nothing_recorded_is_nothing_known() -> None:
    traffic = measure([])
    assert (traffic.requests, traffic.reuse, traffic.ttft_ms) == (0, 0.0, None)
