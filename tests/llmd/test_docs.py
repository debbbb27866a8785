"""docs/llm-d.md names everything that is understood, and every test that it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

from epp.llmd.catalogue import ALTERNATIVES
from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.plugins import PICKERS, SCORERS, SETTINGS
from epp.llmd.settings import translate

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "llm-d.md").read_text()


def test_every_flag_and_plugin_has_a_row() -> None:
    for flag in FLAGS:
        assert f"`--{flag.name}`" in PAGE or f"`-{flag.name}`" in PAGE, flag.name
    for kind, instead in ALTERNATIVES.items():
        assert f"| `{kind}` | {instead} |" in PAGE, kind
    for kind in (*PICKERS, *SCORERS, SETTINGS):
        assert f"`{kind}`" in PAGE, kind


#: llm-d's flags and defaults, source [E]; "" for none.
LLM_D = {
    "grpc-port": "9002", "grpc-health-port": "9003", "metrics-port": "9090",
    "pool-name": "", "pool-namespace": "", "pool-group": "inference.networking.k8s.io",
    "endpoint-selector": "", "endpoint-target-ports": "",
    "disable-endpoint-subset-filter": "false", "emit-endpoint-scores": "false",
    "config-file": "", "config-text": "", "allow-experimental-plugins": "false",
    "refresh-metrics-interval": "50ms", "refresh-prometheus-metrics-interval": "5s",
    "metrics-staleness-threshold": "2s", "drain-timeout": "30s", "ha-enable-leader-election": "false",
    "secure-serving": "true", "cert-path": "", "enable-cert-reload": "false",
    "tls-min-version": "", "tls-cipher-suites": "", "health-checking": "false",
    "grpc-max-recv-msg-size": "", "grpc-max-send-msg-size": "",
    "metrics-endpoint-auth": "true", "metrics-client-ca-file": "", "metrics-cert-dir": "",
    "enable-pprof": "true", "enable-grpc-stream-metrics": "false", "tracing": "true", "v": "2",
    "zap-encoder": "console", "zap-log-level": "", "zap-devel": "false", "zap-time-encoding": "rfc3339",
    "zap-stacktrace-level": "error",
    "total-queued-requests-metric": "", "total-running-requests-metric": "",
    "kv-cache-usage-percentage-metric": "", "lora-info-metric": "", "cache-info-metric": "",
}  # fmt: skip


def test_the_flags_are_llm_ds_with_its_defaults_and_none_is_missing() -> None:
    rows = re.findall(r"^\| `-+([\w-]+)` \| (?:`(.*?)`)? ?\| (honoured|accepted|refused)", PAGE, re.MULTILINE)
    assert {name: default for name, default, _ in rows} == LLM_D
    assert {flag.name for flag in FLAGS} == LLM_D.keys()
    for name, default, stance in rows:
        flag = next(flag for flag in FLAGS if flag.name == name)
        assert flag.stance.value.startswith(stance), name
        if default:
            assert flag.read(default) == flag.default, name


def test_the_tests_that_it_names_exist() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in sources, name
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_its_example_is_understood() -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(example) == 1
    config = translate(read_flags({"pool-name": "vllm"}), example[0], {}).config
    assert config.policy.name == "gorgo"
    assert config.records.folder == "/records"
