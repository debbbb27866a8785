from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from epp.lab.sim.engine_class import ENGINE_CLASSES, H100, L40S_X2


@pytest.mark.parametrize(
    ("batch", "measured_ms"),
    [
        (1, 7.2),
        (2, 8.5),
        (3, 10.1),
        (4, 11.6),
        (6, 14.0),
        (8, 15.9),
        (12, 18.1),
        (22, 27),
        (33, 46),
        (41, 55),
        (64, 73),
    ],
)
def test_decode_steps_follow_the_measured_curve(batch: int, measured_ms: float) -> None:
    assert L40S_X2.decode_step_ms(batch) == pytest.approx(measured_ms, rel=0.06)


def test_decode_steps_always_grow_and_the_slope_doubles_past_the_graph_limit() -> None:
    steps = [L40S_X2.decode_step_ms(batch) for batch in range(1, 100)]
    assert all(a < b for a, b in pairwise(steps))
    below, above = steps[19] - steps[14], steps[29] - steps[24]
    assert above / below == pytest.approx(2, abs=0.3)


def test_a_two_thousand_token_prefill_stalls_decodes_by_the_measured_rate() -> None:
    assert L40S_X2.prefill_batch_ms(2000) / 2000 == pytest.approx(0.072, rel=0.05)


def test_an_h100_is_faster_at_everything_and_holds_less() -> None:
    assert H100.prefill_batch_ms(4000) < L40S_X2.prefill_batch_ms(4000)
    assert H100.decode_step_ms(16) < L40S_X2.decode_step_ms(16)
    assert H100.kv_capacity_tokens < L40S_X2.kv_capacity_tokens
    assert set(ENGINE_CLASSES) > {"l40s-x2", "h100", "a30", "v100"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frontend_ms": -1.0}, "frontend_ms"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"output_reserve_ratio": 1.5}, "output_reserve_ratio"),
        ({"decode_curve": ()}, "decode_curve"),
        ({"decode_curve": ((2, 1.0), (1, 2.0))}, "decode_curve"),
        ({"decode_curve": ((1, 0.0),)}, "decode_curve"),
    ],
)
def test_constants_out_of_range_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(L40S_X2, **change)  # type: ignore[arg-type]  # wrong on purpose
