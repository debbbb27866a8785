"""docs/llm-d.md names everything that is understood."""

from __future__ import annotations

import re
from pathlib import Path

from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.parameters import ALTERNATIVES, KINDS, STAND_INS
from epp.llmd.plugins import SETTINGS
from epp.llmd.settings import translate

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "llm-d.md").read_text()


def test_every_flag_and_plugin_is_named() -> None:
    named = set(re.findall(r"`(?:-{1,2})?([a-z][\w-]*)`", PAGE))
    assert named >= {flag.name for flag in FLAGS}
    assert named >= {*KINDS, *ALTERNATIVES, *STAND_INS, SETTINGS}


#: llm-d's flags and defaults, source [E]; "" for none.
LLM_D = {
    # of v0.9 alone
    "model-server-metrics-scheme": "http", "model-server-metrics-path": "", "model-server-metrics-port": "0",
    "model-server-metrics-https-insecure-skip-verify": "true",
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
    assert {flag.name for flag in FLAGS} == LLM_D.keys()
    for flag in FLAGS:
        assert not LLM_D[flag.name] or flag.read(LLM_D[flag.name]) == flag.default, flag.name


def test_its_example_is_understood() -> None:
    (example,) = re.findall(r"```yaml\n(apiVersion.*?)```", PAGE, re.DOTALL)
    config = translate(read_flags({"pool-name": "vllm"}), example, {}).config
    assert config.policy.name == "gorgo"
    assert config.records.folder == "/records"
