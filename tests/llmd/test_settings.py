"""llm-d's flags become a configuration of ours, a warning or a refusal; docs/llm-d.md, 'Flags'."""

from __future__ import annotations

import pytest

from epp.cli import build_parser, run
from epp.config.kubernetes import Kubernetes
from epp.config.listen import ServerTls
from epp.errors import ConfigError
from epp.llmd.flags import as_pflag
from epp.server.command import Setup, read_setup

POOL = ("--pool-name", "vllm", "--pool-namespace", "serving")


def setup(*words: str, **environment: str) -> Setup:
    return read_setup(build_parser(("serve",)).parse_args(["serve", *as_pflag(words)]), environment)


def test_llm_ds_defaults() -> None:
    made = setup("--pool-name", "vllm")
    config = made.config
    assert config.listen.grpc == "[::]:9002"
    assert config.listen.health == "[::]:9003"
    assert config.listen.http == "[::]:9090"
    assert config.listen.tls == ServerTls(self_signed=True)
    assert config.pool.kubernetes == Kubernetes(pool_name="vllm")
    assert config.policy.name == "llm-d"
    assert config.policy.weights == {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
    assert config.policy.fallbacks == 0, "some gateways take a single endpoint"
    assert config.scrape.stale_after_s == 2.0
    assert config.drain_s == 30.0
    assert config.drain_accept_s == 5.0
    assert config.protocol.errors == "llm-d"
    assert config.protocol.subset_hint
    assert not config.protocol.emit_scores
    assert not config.protocol.conformance
    assert [w.split(":")[0] for w in made.warnings] == ["--metrics-endpoint-auth"], (
        "the one default that differs"
    )


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--grpc-port=19002"], lambda c: c.listen.grpc == "[::]:19002"),
        (["--grpc-health-port", "0"], lambda c: c.listen.health == "[::]:0"),
        (["--metrics-port", "9999"], lambda c: c.listen.http == "[::]:9999"),
        (["--secure-serving=false"], lambda c: c.listen.tls is None),
        (["--cert-path", "/certs/"], lambda c: c.listen.tls.key_file == "/certs/tls.key"),
        (["--disable-endpoint-subset-filter"], lambda c: not c.protocol.subset_hint),
        (["--emit-endpoint-scores"], lambda c: c.protocol.emit_scores),
        (["--tracing"], lambda c: c.tracing),
        (["--refresh-metrics-interval=1s"], lambda c: c.scrape.interval_s == 1.0),
        (["--metrics-staleness-threshold=5s"], lambda c: c.scrape.stale_after_s == 5.0),
        (["--model-server-metrics-path=/m"], lambda c: c.scrape.path == "/m" and not c.scrape.insecure),
        (["--v=2"], lambda c: c.protocol.old_metric_names and c.protocol.errors == "llm-d"),
        (["--model-server-metrics-scheme=https"], lambda c: c.pool.kubernetes.tls and c.scrape.insecure),
        (
            ["--model-server-metrics-scheme=https", "--model-server-metrics-https-insecure-skip-verify=false"],
            lambda c: c.pool.kubernetes.tls and not c.scrape.insecure,
        ),
        (["--model-server-metrics-port=0"], lambda c: not c.pool.kubernetes.tls),
        (["--drain-timeout=1m"], lambda c: c.drain_s == 60.0),
        (["--drain-timeout=1s"], lambda c: c.drain_accept_s == 0.5),
        (["--grpc-max-recv-msg-size=25MB"], lambda c: c.listen.max_receive_bytes == 25_000_000),
        (["--metrics-cert-dir=/m"], lambda c: c.listen.http_tls.cert_file == "/m/tls.crt"),
        (
            ["--metrics-cert-dir=/m", "--metrics-client-ca-file=/ca"],
            lambda c: c.listen.http_tls.client_ca_file == "/ca",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_flags_that_are_honoured(words: list[str], read: object) -> None:
    assert callable(read)
    assert read(setup(*POOL, *words).config)


def test_pods_by_selector_without_a_pool() -> None:
    config = setup(
        "--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001", "--endpoint-target-ports=8002",
        NAMESPACE="prod",
    ).config  # fmt: skip
    assert config.pool.kubernetes == Kubernetes(
        selector="app=vllm", target_ports=[8000, 8001, 8002], namespace="prod"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ha-enable-leader-election"], "every replica serves"),
        (
            ["--ha-enable-leader-election=false"],
            "`nats.url` and `prefix.secret_file` of epp-settings join them",
        ),
        (["--refresh-metrics-interval=50ms"], "raised to 200 ms"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_that_mean_something_else_are_told(words: list[str], says: str) -> None:
    warnings = setup(*POOL, "--metrics-endpoint-auth=false", *words).warnings
    assert len(warnings) == 1
    assert warnings[0].startswith(words[0].partition("=")[0])
    assert says in warnings[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tls-min-version=VersionTLS13"], "leave the flag out"),
        (["--tls-cipher-suites=TLS_AES_128_GCM_SHA256"], "GRPC_SSL_CIPHER_SUITES"),
        (["--metrics-endpoint-auth=true"], "NetworkPolicy"),
        (["--metrics-client-ca-file=/ca"], "--metrics-cert-dir"),
        (["--model-server-metrics-port=8001"], "serve metrics on the endpoint's port"),
        (["--model-server-metrics-scheme=ftp"], "none of http, https"),
        (["--total-queued-requests-metric=x"], "recognised"),
        (["--config-file=a", "--config-text=b"], "one of them"),
        (["--endpoint-selector=app=x", "--endpoint-target-ports=1"], "both are given"),
        (["--endpoint-target-ports=8000"], "--endpoint-selector"),
        (["--secure-serving=false", "--cert-path=/c"], "goes with TLS"),
        (["--grpc-port=70000"], "not a port"),
        (["--drain-timeout=30"], "not a duration"),
        (["--zap-encoder=xml"], "json"),
        (["--config=epp.yaml"], "does not go with --config"),
        (["--config-file=/nowhere.yaml"], "does not exist"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_that_are_refused_say_why(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setup(*POOL, *words)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "level", "json", "time"),
    [
        ([], "INFO", False, "rfc3339"),
        (["-v=4"], "DEBUG", False, "rfc3339"),
        (["--v=5", "--zap-log-level=error"], "ERROR", False, "rfc3339"),
        (["--zap-log-level=5"], "DEBUG", False, "rfc3339"),
        (["--zap-encoder=json", "--zap-time-encoding=epoch"], "INFO", True, "epoch"),
        (["--log-level=warning"], "WARNING", False, "rfc3339"),
    ],
)
def test_the_form_of_the_log(words: list[str], level: str, json: bool, time: str) -> None:
    log = setup(*POOL, *words).log
    assert (log.level, log.json, log.time) == (level, json, time)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--emit-endpoint-scores", "", "--v", "3", ""], ["--emit-endpoint-scores=true", "--v=3"]),
        (["-v", "3"], ["--v=3"]),
        (["-v3", "-v=3"], ["-v3", "-v=3"]),
        (["--pool-name", "--v"], ["--pool-name=--v"]),
        (["--secure-serving", "false", "--v=3"], ["--secure-serving=true", "--v=3", "--", "false"]),
        (["--v=3", "--", "--v=4"], ["--v=3", "--", "--v=4"]),
        (["--pool-name"], ["--pool-name"]),
    ],
)
def test_words_are_read_as_pflag_reads_them(words: list[str], read: list[str]) -> None:
    assert as_pflag(words) == read


def test_a_boolean_s_value_without_an_equals_sign_says_nothing_and_is_told() -> None:
    made = setup(*POOL, "--secure-serving", "false", "")
    assert made.config.listen.tls == ServerTls(self_signed=True), "as llm-d serves"
    assert made.warnings[0].startswith("'false' belongs to no flag")
    with pytest.raises(ConfigError, match="belongs to no flag"):
        setup("--config=epp.yaml", "other.yaml")


@pytest.mark.parametrize("words", [["-pool-name", "x"], ["--pool", "x"], ["--pool-name"], ["---v=4"]])
def test_what_pflag_refuses_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["serve", *words])
    assert words[0] in capsys.readouterr().err
