"""Keys from environment variables, above those of the file."""

from __future__ import annotations

import pytest

from epp.config.load import parse_config, salvage_config
from tests.llmd.test_settings import POOL, setup

FILE = "policy: {name: gorgo, tolerance: 0.5, weights: {rtt_weight: 2}}\nregions: [{allow: [a], model: b}]"


def test_variables_win_over_the_file_key_by_key() -> None:
    config = parse_config(
        FILE,
        "epp.yaml",
        {
            "EPP__POLICY__TOLERANCE": "0.25",
            "EPP__POLICY__WEIGHTS__QUEUE_WEIGHT": "3",
            "EPP__LISTEN__GRPC": "[::]:9002",  # a text needs no quotes, though YAML would read a list
            "EPP__NATS__NAME": "7",
            "EPP__OBSERVE": "sample:0.1",
            "EPP__REGIONS": "[]",
            "EPP__RECORDS": "{folder: there, sample: 0.5}",
            "EPP__RECORDS__SAMPLE": "0.75",
            "EPP_PORT": "tcp://10.0.0.1:9002",  # Kubernetes, for a Service of that name
        },
    )
    assert (config.policy.name, config.policy.tolerance) == ("gorgo", 0.25)
    assert config.policy.weights == {"rtt_weight": 2.0, "queue_weight": 3.0}
    assert (config.listen.grpc, config.nats.name, config.observe) == ("[::]:9002", "7", "sample:0.1")
    assert (config.regions, config.records.folder, config.records.sample) == ([], "there", 0.75)


def test_errors_of_variables_and_of_the_file_are_reported_together() -> None:
    variables = {
        "EPP__POLCY__NAME": "gorgo",
        "EPP__POLICY__NAM": "gorgo",
        "EPP__DRAIN_S": "ten",
        "EPP__LISTEN__GRPC": "here",
        "EPP__REGIONS": "[{",
    }
    _, errors = salvage_config("policy: {tolerence: 3}", "epp.yaml", variables)
    found = {error.source.removeprefix("environment variable "): (error.key, error.fix) for error in errors}
    assert found.pop("epp.yaml") == ("policy.tolerence", "did you mean 'tolerance'?")
    assert found["EPP__POLCY__NAME"] == ("polcy", "did you mean 'policy'?")
    assert found["EPP__POLICY__NAM"] == ("policy.nam", "did you mean 'name'?")
    assert found.keys() == variables.keys()


@pytest.mark.parametrize(("flags", "wanted"), [((), "[::]:9"), (("--grpc-port=8",), "[::]:8")])
def test_flags_of_llm_ds_win_over_variables(flags: tuple[str, ...], wanted: str) -> None:
    assert setup(*POOL, *flags, EPP__LISTEN__GRPC="[::]:9").config.listen.grpc == wanted
