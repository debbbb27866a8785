"""The model's file: comes back bit for bit, and whatever is wrong with one is told by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.policies.reward_model import DEFAULT_FEATURES, FEATURES, PAPER_FEATURES, RewardModel, inputs
from epp.records.model_files import dump_reward_model, parse_reward_model, version_path
from tests.kit.fleets import fleet_view, request
from tests.kit.reward_models import linear_model, random_model

MODEL = random_model(1, classes=("a30", "v100"), width=8)


def told(model: RewardModel = MODEL) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(dump_reward_model(model))
    return content


def parsed(content: object) -> RewardModel:
    return parse_reward_model(json.dumps(content), "reward.json")


@settings(max_examples=20)
@given(st.integers(0, 1000), st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True))
def test_comes_back_bit_for_bit(seed: int, classes: list[str]) -> None:
    model = random_model(seed, classes=classes, width=5)
    again = parse_reward_model(dump_reward_model(model), "reward.json")
    assert again == model
    assert dump_reward_model(again) == dump_reward_model(model)
    x = np.random.default_rng(seed).random((4, len(model.mean))) * 100
    assert again.predict(x).tolist() == model.predict(x).tolist()
    assert again.out_of_distribution(x).tolist() == model.out_of_distribution(x).tolist()


def test_a_price_comes_back_and_a_file_of_before_there_were_prices_is_read() -> None:
    priced = linear_model({"uncached_tokens": 1.0}, congestion_ms=1 / 3)
    again = parse_reward_model(dump_reward_model(priced), "reward.json")
    assert again == priced
    assert again.congestion_ms == 1 / 3
    old = told()
    del old["congestion_ms"]
    assert parsed(old) == MODEL
    assert parsed(old).congestion_ms == 0.0
    with pytest.raises(ConfigError, match="congestion_ms"):
        parsed(told(priced) | {"congestion_ms": -1.0})
    with pytest.raises(ConfigError, match="congestion_ms"):
        parsed(told(linear_model({"rtt_ms": 1.0})) | {"congestion_ms": 1.0})


WIDTH = len(MODEL.mean)


def test_versions_lie_beside_the_file() -> None:
    path = version_path(Path("models/reward.json"), MODEL.version)
    assert path == Path(f"models/reward.{MODEL.version}.json")
    for version in ("../../../etc/pass", "", "latest", MODEL.version.upper()):
        with pytest.raises(ValueError, match="no version"):
            version_path(Path("reward.json"), version)


def test_inputs_are_columns_of_the_view_and_numbers_of_the_request() -> None:
    snapshot = fleet_view(
        2,
        engine_classes=("v100", "h100"),
        running_requests=[5, 1],
        decoding_requests=[3, 1],
        cached_tokens=[500, 0],
        uncached_tokens=[500, 1000],
        decoding_tokens=[9000, 40],
    )
    ask = request(prompt_tokens=1000, body_bytes=4321)
    names = ["waiting_requests", "hit_ratio", "prompt_tokens", "body_bytes", "decoding_tokens"]
    assert inputs(ask, snapshot, names, ["a30", "v100"]).tolist() == [
        [2.0, 0.5, 1000.0, 4321.0, 9000.0, 0.0, 1.0],
        [0.0, 0.0, 1000.0, 4321.0, 40.0, 0.0, 0.0],
    ]
    assert inputs(request(), snapshot, ["hit_ratio"], []).tolist() == [[0.0], [0.0]]
    assert set(PAPER_FEATURES) < set(DEFAULT_FEATURES) < set(FEATURES)


def test_the_pass_is_that_of_the_network_written_out() -> None:
    x = np.random.default_rng(5).random((7, WIDTH)) * 50
    x[:, -2:] = [1.0, 0.0]
    values = (x - MODEL.mean) / MODEL.std
    for number, (weights, bias) in enumerate(MODEL.layers):
        values = values @ weights.astype(np.float64) + bias
        if number < len(MODEL.layers) - 1:
            values = np.where(values > 0, values, 0.0)
    np.testing.assert_allclose(MODEL.predict(x), values * MODEL.scale + MODEL.offset, rtol=1e-4)


def test_inputs_beyond_the_bounds_predict_what_those_at_them_do() -> None:
    model = linear_model({"rtt_ms": 2.0}, low={"rtt_ms": 10.0}, high={"rtt_ms": 20.0})
    x = np.array([[-1e30], [15.0], [22.0], [1e300]])
    assert model.predict(x)[:, 0].tolist() == pytest.approx([16.0, 30.0, 44.0, 44.0])
    assert model.out_of_distribution(x).tolist() == [True, False, False, True]


def test_a_damaged_file_is_no_model() -> None:
    whole = dump_reward_model(MODEL)
    for broken in (b"", whole[:-20], whole.replace(b'"round": ', b'"round": 7', 1)):
        with pytest.raises(ConfigError, match=r"reward\.json"):
            parse_reward_model(broken, "reward.json")
