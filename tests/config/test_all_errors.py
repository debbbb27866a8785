"""All errors of a configuration are reported at once, and none that only follow from others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from epp.config.capability import parse_capability
from epp.config.load import parse_config, parse_weights
from epp.config.pool import parse_pool
from epp.errors import ConfigError
from epp.server.app import App
from tests.kit.clock import ManualClock
from tests.kit.logs import own_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = """
policy: {tolerance: 3, fallbacks: x, nam: gorgo}
listen: {grpc: nine, max_connections: 0, tls: {cert_file: a}}
scrape: {interval_s: 100ms, stale_after_s: -1}
regions: [{allow: [eu]}, {allow: [], model: m}, {model: m}]
tokens: {models: {a: {sorce: x}, b: {source: x, chat_template: 0}}}
relays: {regions: {eu: x, us: "y:99999"}, connections: 65}
weights_file: w.yaml
overrides_file: ./w.yaml
drain: 5
"""
CONFIG_KEYS = [
    "policy.tolerance", "policy.fallbacks", "policy.nam", "listen.max_connections", "listen.tls",
    "scrape.interval_s", "scrape.stale_after_s", "regions[0]", "regions[1].allow", "regions[2]",
    "tokens.models.a.sorce", "tokens.models.a", "tokens.models.b.chat_template", "relays.connections", "drain",
    "listen.grpc", "overrides_file",
]  # fmt: skip
POOL = """
endpoints:
  - {address: "a:0"}
  - {addres: "b:1"}
  - {address: "b:1", rtt_ms: -1, region: 5}
  - {address: "c:1", models: [m, m]}
  - {address: "d:1"}
  - {address: "d:1"}
"""
POOL_KEYS = [
    "endpoints[1].addres", "endpoints[1]", "endpoints[2].rtt_ms", "endpoints[2].region",
    "endpoints[0].address", "endpoints[3].models", "endpoints[5].address",
]  # fmt: skip
CELL = "language: en, bucket_tokens: 1024, success: 0.5"
CAPABILITY = f"models: {{m: [{{{CELL}}}, {{{CELL}}}, {{language: en, bucket_tokens: 3, success: 0.5}}]}}"


def weights(text: str, source: str) -> object:
    return parse_weights(text, source, policy="gorgo", bounds={"rtt_weight": (0.0, 1.0)})


@pytest.mark.parametrize(
    ("parse", "text", "keys"),
    [
        (parse_config, CONFIG, CONFIG_KEYS),
        (parse_config, "relays: {regions: {eu: x, us: 'y:99999'}}", ["relays"] * 3),
        (parse_config, "pool: {kubernetes: {selector: '=', target_ports: [1, 1]}}", ["pool.kubernetes"] * 2),
        (parse_pool, POOL, POOL_KEYS),
        (weights, "weights: {rtt_weight: 2, other: 1}", ["weights.rtt_weight", "weights.other"]),
        (parse_capability, CAPABILITY, ["models.m[1]", "models.m[2].bucket_tokens"]),
    ],
)
def test_every_error_of_a_file_is_reported_by_its_key(
    parse: Callable[[str, str], object], text: str, keys: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "the file")
    assert [error.key for error in caught.value.errors] == keys
    assert {error.source for error in caught.value.errors} == {"the file"}
    assert str(caught.value) == "; ".join(map(str, caught.value.errors)), "one entry of a log"


def test_a_hundred_errors_are_reported_and_that_there_are_more() -> None:
    text = "endpoints:\n" + '- {address: "a:1", rtt_ms: -1}\n' * 200
    with pytest.raises(ConfigError) as caught:
        parse_pool(text, "endpoints.yaml")
    errors = caught.value.errors
    assert (len(errors), errors[99].key) == (101, "endpoints[99].rtt_ms")
    assert str(errors[100]) == "endpoints.yaml: there are more errors (correct these first)"


def checked(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines that `epp config check` writes of a configuration."""
    (folder / "epp.yaml").write_text(text)
    assert main(["config", "check", "--config", str(folder / "epp.yaml")]) == 1
    return [line.removeprefix(f"epp: {folder}/") for line in capsys.readouterr().err.splitlines()]


def of_keys(lines: list[str]) -> list[str]:
    """File and key of each line."""
    parts = [[part for part in line.split(": ") if not part.startswith("line ")] for line in lines]
    return [": ".join(part[:2]) for part in parts]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("policy: {name: gorgo, tolerance: 3}", "line 1, column 23: policy.tolerance"),
        ("policy:\n  nam: gorgo", "line 2, column 3: policy.nam"),
        ("regions:\n  - {allow: [eu], model: m}\n  - {model: m}", "line 3, column 5: regions[1]"),
        ("regions:\n  - {path_prefix: 5}", "line 2, column 6: regions[0].path_prefix"),
        ("tokens: {models: {llama-3.1: {sorce: x}}}", "line 1, column 31: tokens.models.llama-3.1.sorce"),
        ("policy: {name: gorgo, params: {speed: 1}}", "line 1, column 32: policy.params.speed"),
    ],
)
def test_an_error_says_in_which_line_and_column_its_key_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, place: str
) -> None:
    assert checked(tmp_path, text, capsys)[0].startswith(f"epp.yaml: {place}: ")


#: Wrong in what only a start finds out, and in every file that a start reads.
START = """
listen: {http_tls: {cert_file: no.crt, key_file: no.key, client_ca_file: no.ca}}
policy: {name: gorgo, weights: {rtt: 1}, bounds: {queue: [0, 1]}, params: {speed: 1}}
overrides_file: overrides.yaml
prefix: {secret_file: short}
shadow: [gorg, gorgo, gorgo]
capability: {file: capability.yaml}
"""
START_KEYS = [
    "epp.yaml: prefix.secret_file", "epp.yaml: policy.params.speed", "epp.yaml: policy.bounds.queue",
    "epp.yaml: policy.weights.rtt", "epp.yaml: shadow[0]", "epp.yaml: shadow[2]",
    "epp.yaml: listen.http_tls.key_file", "epp.yaml: listen.http_tls.cert_file",
    "epp.yaml: listen.http_tls.client_ca_file", "overrides.yaml: weights.w", "overrides.yaml: weights.v",
    "capability.yaml: models", "endpoints.yaml: endpoints[0].address",
]  # fmt: skip


@pytest.mark.parametrize(
    "first", [[], ["scrape.interval_s", "drain_s", "request.size", "regios"]], ids=["values", "and types"]
)
def test_a_check_reports_the_errors_of_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: list[str]
) -> None:
    (tmp_path / "short").write_text("x")
    (tmp_path / "overrides.yaml").write_text("weights: {w: 1, v: 1}")
    (tmp_path / "capability.yaml").write_text("models: 1")
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: 'a:0'}]")
    text = START + ("scrape: {interval_s: -1}\ndrain_s: -1\nrequest: {size: 1}\nregios: []" if first else "")
    assert of_keys(checked(tmp_path, text, capsys)) == [f"epp.yaml: {key}" for key in first] + START_KEYS


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("policy: {name: 5, params: {speeds: {l40s: 1}}}", ["policy.name"]),
        ("pol: {file: mine.yaml}", ["pol"]),
        ("pool: {kubernetes: {service: 5}}", ["pool.kubernetes.service"]),
    ],
)
def test_what_only_follows_from_an_error_is_not_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, keys: list[str]
) -> None:
    if "pool" not in text and "pol:" not in text:
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    assert of_keys(checked(tmp_path, text, capsys)) == [f"epp.yaml: {key}" for key in keys]


def test_errors_of_a_watched_file_are_one_entry_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(parse_config("", "epp.yaml"), tmp_path, "epp.yaml", ManualClock())
    (tmp_path / "endpoints.yaml").write_text(POOL)
    with caplog.at_level("ERROR"):
        for file in app._files:
            file.check()
    (entry,) = own_lines(caplog, logging.ERROR)
    assert all(f"endpoints.yaml: {key}: " in entry for key in POOL_KEYS)


def test_a_configuration_without_errors_passes_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "epp.yaml").write_text("")
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    assert main(["config", "check", "--config", str(tmp_path / "epp.yaml")]) == 0
    assert "no errors" in capsys.readouterr().out
