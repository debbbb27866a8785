from __future__ import annotations

import pytest

from epp.errors import ConfigError
from epp.policies.base import WeightSpec
from epp.schedule.weights import WeightBook

SPECS = {
    "rtt_weight": WeightSpec(0.276, 0.0, 10.0, "tokens per ms"),
    "queue_weight": WeightSpec(0.5, 0.0, 10.0, "share"),
}


def book(**options: object) -> WeightBook:
    arguments: dict[str, object] = {"configured": {}, "bounds": {}, **options}
    return WeightBook(policy="gorgo", specs=SPECS, source="epp.yaml", **arguments)  # type: ignore[arg-type]


def test_later_layers_win_value_by_value() -> None:
    weights = book(configured={"rtt_weight": 1.0})
    assert weights.update("tuner", b"weights: {rtt_weight: 2.0, queue_weight: 0.7}", "weights.yaml")
    assert weights.update("override", b"weights: {queue_weight: 0.9}", "overrides.yaml")
    assert weights.current.values == {"rtt_weight": 2.0, "queue_weight": 0.9}
    assert weights.current.sources == {"rtt_weight": "tuner", "queue_weight": "override"}


def test_overrides_win_whichever_file_changes_last() -> None:
    weights = book()
    weights.update("override", b"weights: {queue_weight: 0.9}", "o")
    weights.update("tuner", b"weights: {queue_weight: 0.1}", "w")
    assert weights.current.values["queue_weight"] == 0.9


def test_a_removed_file_withdraws_its_values() -> None:
    weights = book(configured={"rtt_weight": 1.0})
    weights.update("tuner", b"weights: {rtt_weight: 2.0}", "w")
    assert weights.update("tuner", None, "w")
    assert weights.current.values["rtt_weight"] == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b"weights: {rtt_weight: 0.", "valid YAML"),
        (b"weights: {rtt_weight: .nan}", "out of bounds"),
        (b"weights: {rtt_weight: 99}", "0.01 to 2.0"),
        (b"weights: {rtt: 1}", "known: queue_weight, rtt_weight"),
        (b"weight: {rtt_weight: 1}", "did you mean 'weights'"),
        (b"{version: 3, weights: {}}", "version 3 is not known"),
        (b"{version: 2, weights: {}}", "torn or was changed by hand"),
        (b"{policy: other, weights: {}}", "made for 'other'"),
        (b"\x00\xff", "weights.yaml"),
        (b"weights: {rtt_weight: yes}", "expected"),
    ],
)
def test_an_unusable_file_keeps_the_last_good_values(text: bytes, words: str) -> None:
    weights = book()
    weights.update("tuner", b"weights: {rtt_weight: 2.0}", "weights.yaml")
    before = weights.current
    with pytest.raises(ConfigError, match=r"weights\.yaml") as caught:
        weights.update("tuner", text, "weights.yaml")
    assert words in str(caught.value)
    assert weights.current == before


def test_every_prefix_of_a_file_is_refused_or_harmless() -> None:
    whole = b"version: 1\npolicy: gorgo\nweights:\n  rtt_weight: 2.5\n  queue_weight: 0.75\n"
    for length in range(len(whole)):
        weights = book()
        try:
            weights.update("tuner", whole[:length], "w")
        except ConfigError:
            continue
        for name, value in weights.current.values.items():
            assert weights.bounds[name][0] <= value <= weights.bounds[name][1]


def test_bounds_tighten_but_never_widen() -> None:
    assert book(bounds={"rtt_weight": (0.5, 1.0)}).current.values["rtt_weight"] == 0.5
    with pytest.raises(ConfigError, match=r"policy.bounds.rtt_weight"):
        book(bounds={"rtt_weight": (0.0, 11.0)})
    with pytest.raises(ConfigError, match="unknown weight"):
        book(bounds={"nope": (0.0, 1.0)})


def test_the_version_is_a_digest_of_the_values() -> None:
    one, two = book(), book(configured={"rtt_weight": 1.0})
    assert one.current.version == book().current.version != two.current.version
