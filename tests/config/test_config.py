from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.address import normalise_address, split_address
from epp.config.load import parse_config
from epp.config.pool import dump_pool, parse_pool
from epp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("polcy: {}", "polcy", "did you mean 'policy'?"),
        ("zzz: 1", "zzz", "known keys: capability, drain_accept_s"),
        ("policy: {tolerance: 3}", "policy.tolerance", "<= 1.0"),
        ("policy: {weights: {rtt_weight: much}}", "policy.weights.rtt_weight", "float"),
        ("listen: {grpc: nine}", "listen.grpc", "not host:port"),
        ("listen: {tls: {cert_file: a}}", "listen.tls", "key_file"),
        ("scrape: {interval_s: 100ms}", "scrape.interval_s", "got 'str' (a number without a unit"),
        ("protocol: {emit_scores: 'yes'}", "protocol.emit_scores", "true or false"),
        ("shadow: gorgo", "shadow", "a list"),
        ("records: {compress: gzip}", "records.compress", "'gzip' (one of: none, zstd)"),
        ("listen: {grpc: 'http://127.0.0.1:9002'}", "listen.grpc", "is a URL; write host:port alone"),
        ("tokens: {models: {a: {source: x}, m: {sorce: x}}}", "tokens.models.m.sorce", "mean 'source'?"),
        ("regions: [{allow: [eu], header: x-tenant}]", "regions[0]", "go together"),
        ("request: {max_held_body_bytes: 1000}", "request", "is below max_body_bytes"),
        (
            "kv_events: {address: 'tcp://{host}:5557', replay_address: 'tcp://{host}:5558', ranks: 2}",
            "kv_events",
            "less than ranks (2) apart",
        ),
        ("observe: sample:2", "observe", "no such value (all, none, or sample: and a share from 0 to 1"),
        ("probe: {timeout_s: .inf}", "probe.timeout_s", "(above 0 and at most 1000000000000)"),
        ("probe: {path: health}", "probe.path", "from / on, e.g. /health"),
        (
            "request: {tenant_header: 'x tenant'}",
            "request.tenant_header",
            "a header's name alone, e.g. x-tenant",
        ),
        ("weights_file: w.yaml\noverrides_file: ./w.yaml", "overrides_file", "a file each"),
        ("pool: {}\npool: {}", "", "duplicate key 'pool'"),
        ("queue: {programs: {enabled: true}}", "queue", "queue.enabled: true"),
        ("a: [", "", "valid YAML"),
        ("- 1", "", "got 'array' (keys and values"),
        ("1: 2", "", "key 1 is not text"),
    ],
)
def test_a_mistake_is_told_by_file_key_and_fix(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "conf/epp.yaml")
    assert caught.value.source == "conf/epp.yaml"
    assert caught.value.key == key
    assert words in str(caught.value)


def test_old_names_of_keys_are_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = "cluster: {url: 'nats://n'}\nprefix: {secret_file: s}\npolicy: {tie_band: 0.5}"
    config = parse_config(text, "epp.yaml", {"EPP__CLUSTER__NAME": "7", "EPP__POLICY__TIE_BAND": "0.25"})
    assert (config.nats.url, config.nats.name, config.policy.tolerance) == ("nats://n", "7", 0.25)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 4
    assert "epp.yaml: key policy.tie_band is called tolerance now; it is read until version 0.2" in warned


def test_an_empty_configuration_is_all_defaults_on_loopback() -> None:
    config = parse_config("", "epp.yaml")
    assert config.listen.grpc.startswith("127.0.0.1:")
    assert config.listen.http.startswith("127.0.0.1:")


@given(st.text(max_size=60))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(text, "epp.yaml")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("[FD00:0::1]:8000", "[fd00::1]:8000"),
        ("[::FFFF:a00:1]:80", "[::ffff:10.0.0.1]:80"),  # as Envoy spells them
        ("[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:80"),
        ("[::1]:80", "[::1]:80"),
        ("GPU-1.Example:80", "gpu-1.example:80"),
    ],
)
def test_addresses_have_one_spelling(text: str, canonical: str) -> None:
    assert normalise_address(text) == canonical == normalise_address(canonical)


@pytest.mark.parametrize(
    "text",
    ["", "a", ":80", "a:", "a:x", "fd00::1:80", "[fd00::1]", "1.2.3:80", "a b:80", "[::g]:1", "-a:1", "a:-1"],
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_address(text)


POOL = """
endpoints:
  - {address: "10.0.0.1:8000", region: eu, models: [llama], context_tokens: 8192}
  - {address: "[fd00::1]:8000", tls: true, server_name: gpu.example, draining: true}
  - {address: "gpu.example:443"}
"""


def test_the_pool_file_reads_in_order_and_round_trips() -> None:
    specs = parse_pool(POOL, "endpoints.yaml")
    assert list(specs) == ["10.0.0.1:8000", "[fd00::1]:8000", "gpu.example:443"]
    assert specs["10.0.0.1:8000"].endpoint().models == frozenset({"llama"})
    assert parse_pool(dump_pool(list(specs.values())), "again") == specs


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "", "empty"),
        ("{}", "", "endpoints"),
        ("endpoints: [{address: 'x:1', regon: a}]", "endpoints[0].regon", "did you mean 'region'?"),
        ("endpoints: [{address: 'fd00::1:80'}]", "endpoints[0].address", "brackets"),
        ("endpoints: [{address: 'x:0'}]", "endpoints[0].address", "port 0"),
        ("endpoints: [{address: 'x:1'}, {address: 'X:1'}]", "endpoints[1].address", "listed twice"),
        ("endpoints: [{address: 'x:1', rtt_ms: -1}]", "endpoints[0].rtt_ms", ">= 0"),
        ("endpoints: [{address: 'x:1', rtt_ms: 60001}]", "endpoints[0].rtt_ms", "<= 60000"),
        ("endpoints: [{address: 'x:1', models: [\"a\\n\"]}]", "endpoints[0].models", "printable"),
        ("endpoints: [{address: 'x:1', models: [a, a]}]", "endpoints[0].models", "one entry per model"),
        ("endpoints: [{address: 'x:1', adapters: [a]}]", "endpoints[0].adapters", "name the base model"),
        ("endpoints: [{address: 'x:1', models: [a], adapters: [a]}]", "endpoints[0].adapters", "of its own"),
        (
            "endpoints: [{address: 'x:1', models: {a: m}, adapters: {b: m}}]",
            "endpoints[0].adapters",
            "'models'",
        ),
    ],
)
def test_a_mistake_in_the_pool_is_told(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pool(text, "endpoints.yaml")
    assert caught.value.key == key
    assert words in str(caught.value)


def test_entries_may_share_keys_by_yaml_s_merge() -> None:
    text = """
endpoints:
  - &gpu {address: "a:1", region: eu, tls: true}
  - {<<: *gpu, address: "b:1"}
"""
    told = {address: (spec.region, spec.tls) for address, spec in parse_pool(text, "endpoints.yaml").items()}
    assert told == {"a:1": ("eu", True), "b:1": ("eu", True)}
    with pytest.raises(ConfigError, match="duplicate key 'address'"):
        parse_pool(
            "endpoints: [&gpu {address: 'a:1'}, {<<: *gpu, address: 'b:1', address: 'c:1'}]", "endpoints.yaml"
        )


def test_models_have_public_names_and_those_of_their_engine() -> None:
    text = "endpoints: [{address: 'x:1', models: {chat: llama, raw: raw}, adapters: {sql: lora-7}}, {address: 'y:1', models: [chat]}]"
    specs = parse_pool(text, "endpoints.yaml")
    mapped, same = (spec.endpoint() for spec in specs.values())
    assert mapped.models == frozenset({"chat", "raw", "sql"})
    assert mapped.adapters == frozenset({"sql"})
    assert [mapped.served_name(model) for model in ("chat", "raw", "sql")] == ["llama", "raw", "lora-7"]
    assert same.models == frozenset({"chat"})
    assert same.served_name("chat") == "chat"
    assert parse_pool(dump_pool(list(specs.values())), "again") == specs
