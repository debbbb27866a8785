"""Hard bounds of the tuner, over all policies; settings with which nothing could be tuned."""

from __future__ import annotations

import pytest

from epp.config.bounds import HARD, tuner_bounds
from epp.config.strict import decode
from epp.errors import ConfigError
from epp.policies.registry import POLICIES, create
from epp_lab.tuner.settings import TunerKeys, TunerSettings, tuner_settings

#: Weights by which a policy sees how busy an endpoint is; at 0 it goes to the nearest, or to whoever has the prefix.
QUEUES = {
    "queue_weight",
    "queued_weight",
    "queue_ms_per_token",
    "waiting_weight",
    "alpha",
    "decode_ms_per_request",
}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_tuner_may_take_the_queue_out_of_a_policy(name: str) -> None:
    specs = create(name, {}, source="test").weight_specs
    bounds = {weight: (spec.low, spec.high) for weight, spec in specs.items()}
    allowed = tuner_bounds(name, bounds)
    assert set(HARD.get(name, {})) <= set(specs)
    for weight, spec in specs.items():
        low, high = allowed[weight]
        assert spec.low <= low <= spec.default <= high <= spec.high
        if weight in QUEUES:
            assert low >= 0.08 * spec.default


@pytest.mark.parametrize(
    ("stages", "key", "words"),
    [
        ("lease_s: 30", "stages.lease_s", "unknown key"),
        ("screen_share: 0.7", "stages.screen_share", "<= 0.5"),
        ("ramp_shares: [0.5, 0.2]", "stages", "must rise"),
    ],
)
def test_settings_that_no_candidate_could_pass_are_refused(stages: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        decode(f"stages: {{{stages}}}", TunerKeys, "tuner.yaml")
    assert caught.value.key == key


def test_a_file_of_keys_leaves_the_constants_as_they_are() -> None:
    keys = decode("goal: {slow_ms: 900}", TunerKeys, "tuner.yaml")
    found, usual = tuner_settings(keys), TunerSettings()
    assert found.goal.slow_ms == 900.0
    assert (found.evidence, found.stages) == (usual.evidence, usual.stages)
