"""Metrics of trials: what the second arm has, how much of the traffic it gets, when it ends."""

from __future__ import annotations

from epp.decide.weights import WeightBook
from epp.policies.gorgo import Gorgo
from epp.server.metrics_weights import weight_families
from epp.tuner.plan import Plan, Split, Switchback, render_plan


def shown(book: WeightBook) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in weight_families(book)
        for sample in family.samples
    }


def book(trial: Split | Switchback | None) -> WeightBook:
    weights = WeightBook(policy="gorgo", specs=Gorgo.weight_specs, configured={}, bounds={}, source="t")
    plan = Plan(
        weights={"rtt_weight": 0.5}, policy="gorgo", written_wall_s=7.0, ended_for_fleet=2, trial=trial
    )
    weights.update("tuner", render_plan(plan), "weights.yaml")
    return weights


def test_a_split_shows_its_share_its_weights_and_its_end() -> None:
    trial = Split(
        id="c1", weights={"rtt_weight": 0.9}, valid_from_wall_s=10.0, valid_until_wall_s=99.0, share=0.2
    )
    weights = book(trial)
    weights.choose(20.0, "")
    found = shown(weights)
    assert found["epp_weight", "rtt_weight", "tuner"] == 0.5
    assert found["epp_trial_weight", "rtt_weight", "candidate"] == 0.9
    assert found["epp_trial_share", "split", "candidate"] == 0.2
    assert found["epp_trial_until_timestamp_seconds", "split", "candidate"] == 99.0
    assert found["epp_arm_decisions_total", "none"] == 1.0
    assert found["epp_tuner_written_timestamp_seconds",] == 7.0
    assert found["epp_tuner_ended_for_fleet_total",] == 2.0


def test_a_switchback_gives_the_arm_half_of_the_pairs_that_are_measured() -> None:
    trial = Switchback(
        id="c1", weights={}, arm="previous", valid_from_wall_s=0.0, valid_until_wall_s=9.0, every=4
    )
    assert shown(book(trial))["epp_trial_share", "switchback", "previous"] == 0.125


def test_outside_of_trials_there_are_no_trial_series() -> None:
    assert not [name for name, *_ in shown(book(None)) if name.startswith("epp_trial")]
