"""The model's file: comes back bit for bit, and whatever is wrong with one is told by its key."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.decide.model_files import dump_reward_model, parse_reward_model, version_path
from epp.errors import ConfigError
from epp.policies.reward_model import DEFAULT_FEATURES, FEATURES, PAPER_FEATURES, RewardModel, inputs
from tests.kit.fleets import fleet_view, request
from tests.kit.reward_models import linear_model, random_model

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_another_content_is_another_version() -> None:
    versions = {
        random_model(1).version,
        random_model(2).version,
        linear_model({"rtt_ms": 1.0}).version,
        linear_model({"rtt_ms": 1.5}).version,
        linear_model({"rtt_ms": 1.0}, high={"rtt_ms": 5.0}).version,
        linear_model({"rtt_ms": 1.0}, trained_at_s=1.0).version,
        linear_model({"body_bytes": 1.0}).version,
        linear_model({"uncached_tokens": 1.0}).version,
        linear_model({"uncached_tokens": 1.0}, congestion_ms=1.0).version,
    }
    assert len(versions) == 9
    assert random_model(1) == random_model(1)
    assert random_model(1) != random_model(2)
    assert hash(random_model(1)) == hash(random_model(1))


def changed(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({key: value})


def numbers(*values: float, kind: str = "<f8") -> str:
    return base64.b64encode(np.array(values, kind).tobytes()).decode()


def in_layer(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["layers"][1].update({key: value})


def flipped(content: dict[str, Any]) -> None:
    bias = content["layers"][0]["bias"]
    content["layers"][0]["bias"] = "Q" + bias[1:] if bias[0] != "Q" else "R" + bias[1:]


WIDTH = len(MODEL.mean)


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (changed("format", 2), "format", "reads 1"),
        (lambda content: content.pop("format"), "format", "None is not known"),
        (changed("wieghts", 1), "wieghts", "unknown key"),
        (lambda content: content.pop("mean"), "", "mean"),
        (changed("mean", "!!!"), "mean", "base64"),
        (changed("mean", numbers(1.0)), "mean", "holds 8 bytes"),
        (changed("mean", numbers(*[np.nan] * WIDTH)), "mean", "not finite"),
        (changed("std", numbers(*[0.0] * WIDTH)), "std", "positive"),
        (changed("low", numbers(*[1e12] * WIDTH)), "low", "above high"),
        (changed("scale", numbers(-1.0, 1.0)), "scale", "positive"),
        (changed("features", ["rtt_ms"]), "mean", "bytes"),
        (changed("features", [*DEFAULT_FEATURES[:-1], "endpoint"]), "features", "endpoint"),
        (changed("features", [*DEFAULT_FEATURES[:-1], "rtt_ms"]), "features", "twice"),
        (changed("classes", ["a", "a"]), "classes", "twice"),
        (changed("heads", ["itl_ms", "ttft_ms"]), "heads", "must be"),
        (changed("heads", ["ttft_ms"]), "scale", "bytes"),
        (changed("layers", []), "layers", "length"),
        (in_layer("inputs", 9), "layers[1].weights", "bytes"),
        (in_layer("outputs", 2**40), "layers", "smaller network"),
        (in_layer("bias", numbers(*[np.inf] * 8, kind="<f4")), "layers[1].bias", "not finite"),
        (changed("samples", 0), "samples", ">= 1"),
        (changed("seen", 1), "samples", "seen"),
        (changed("tail", 0.7), "tail", "0.5"),
        (flipped, "version", "damaged"),
        (changed("trained_at_s", 5.0), "version", "damaged"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(
    change: Callable[[dict[str, Any]], object], key: str, words: str
) -> None:
    content = told()
    change(content)
    with pytest.raises(ConfigError, match=words) as caught:
        parsed(content)
    assert (caught.value.source, caught.value.key) == ("reward.json", key)


@pytest.mark.parametrize("text", ["", "  \n", "{", "[1]", "null", "\x00", "[" * 100_000], ids=len)
def test_a_torn_file_is_no_model(text: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.json"):
        parse_reward_model(text, "reward.json")


def test_any_cut_of_a_file_is_refused() -> None:
    whole = dump_reward_model(MODEL)
    for end in range(0, len(whole) - 2, len(whole) // 40):
        with pytest.raises(ConfigError):
            parse_reward_model(whole[:end], "reward.json")


def test_versions_lie_beside_the_file() -> None:
    path = version_path(Path("models/reward.json"), MODEL.version)
    assert path == Path(f"models/reward.{MODEL.version}.json")
    for version in ("../../../etc/pass", "", "latest", MODEL.version.upper()):
        with pytest.raises(ValueError, match="no version"):
            version_path(Path("reward.json"), version)


def test_inputs_are_columns_of_the_view_and_numbers_of_the_request() -> None:
    fleet = fleet_view(
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
    assert inputs(ask, fleet, names, ["a30", "v100"]).tolist() == [
        [2.0, 0.5, 1000.0, 4321.0, 9000.0, 0.0, 1.0],
        [0.0, 0.0, 1000.0, 4321.0, 40.0, 0.0, 0.0],
    ]
    assert inputs(request(), fleet, ["hit_ratio"], []).tolist() == [[0.0], [0.0]]
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


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": np.zeros(3)},
        {"mean": np.zeros(1, np.float32)},
        {"layers": ()},
        {"layers": ((np.zeros((1, 1)), np.zeros(1)),)},
        {"heads": ()},
        {"round": 0},
        {"trained_at_s": float("nan")},
        {"validation": {"error": float("inf")}},
    ],
)
def test_a_model_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=":"):
        linear_model({"rtt_ms": 1.0}, **fields)
