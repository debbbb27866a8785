"""What `epp migrate llm-d` makes of the values of llm-d's guides.

`data/guides.jsonl` has of each what says how the picker decides: its plugin configuration, replicas, flags and scraping.
Source: ``guides/**/*.values.yaml`` of llm-d/llm-d at b2cb19c8 (2026-08-19, with ``router/`` left out of the paths), and
later multi-cluster-routing at 33fd429, context-length-aware-pd at 6f9e065, batch-serving at 16cbcc8 and omni-serving
at 5e758d8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from epp.errors import ConfigError
from epp.llmd.migrate import migrate
from epp.llmd.picker_config import parse_picker_config
from epp.llmd.plugins import meaning_of

GUIDES: dict[str, dict[str, Any]] = {
    guide["guide"]: guide
    for guide in map(json.loads, (Path(__file__).parent / "data" / "guides.jsonl").read_text().splitlines())
}
_PREDICTED, _MEDIA = "predicted-latency-routing/predicted-latency", "multimodal-serving"
#: Guide -> the policy that decides.
POLICIES = {
    "agentic-serving/agentic-serving": "llm-d-profile",
    "agentic-serving/agentic-serving-gpu": "llm-d-stages",
    "agentic-serving/agentic-serving-tpu-disagg": "llm-d-stages",
    "coord-disaggregation/coord-disaggregation": "llm-d-profiles",
    "coord-disaggregation/coord-disaggregation-decode": "llm-d-profile",
    "coord-disaggregation/coord-disaggregation-encode": "llm-d-profile",
    "coord-disaggregation/coord-disaggregation-prefill": "llm-d-profile",
    "fast-model-actuation/fast-model-actuation": "llm-d",
    "flow-control/flow-control": "llm-d",
    "modelexpress-p2p/modelexpress-p2p": "llm-d",
    f"{_MEDIA}/aggregation/aggregation": "llm-d-profile",
    f"{_MEDIA}/e-disaggregation/sglang/e-pd-disaggregation": "llm-d",
    f"{_MEDIA}/e-disaggregation/vllm/e-p-d-disaggregation": "llm-d-stages",
    f"{_MEDIA}/e-disaggregation/vllm/e-pd-disaggregation": "llm-d-stages",
    "omni-serving/omni": "llm-d",
    "optimized-baseline/optimized-baseline": "llm-d-profile",
    "optimized-baseline/optimized-baseline-trtllm": "llm-d-profile",
    "p2p-kv-cache-sharing/p2p-kv-cache-sharing": "llm-d-profile",
    "pd-disaggregation/pd-disaggregation": "llm-d-stages",
    "precise-prefix-cache-routing/precise-prefix-cache-routing": "llm-d-profile",
    _PREDICTED: "llm-d-profile",
    f"{_PREDICTED}-multimodal": "llm-d-profile",
    f"{_PREDICTED}-pd": "llm-d-stages",
    f"{_PREDICTED}-slo": "llm-d-profile",
    "tiered-prefix-cache/tiered-prefix-cache-cpu": "llm-d-profile",
    "wide-ep-lws/glm-5.2-overrides": "llm-d",
    "wide-ep-lws/precise-routing": "llm-d",
    "wide-ep-lws/wide-ep-lws": "llm-d-stages",
    "wide-ep-lws/xpu": "llm-d",
    "workload-autoscaling/keda-epp-queue/optimized-baseline": "llm-d-profile",
    "workload-autoscaling/multi-inference-pool/model-b": "llm-d",
}
#: Guide -> what is said instead.
REFUSED = {
    "multi-cluster-routing/hub-load": "unknown key|several regions",
    "context-length-aware-pd": "state context_tokens of endpoints",
    "batch-serving/asynchronous-processing/multitenant/values/flow-control-evictable": "leave it out",
}


def values_of(guide: str) -> str:
    """A guide's values, in the form of the charts'."""
    epp: dict[str, Any] = {key: GUIDES[guide][key] for key in ("replicas", "flags") if key in GUIDES[guide]}
    if plugins := GUIDES[guide].get("plugins"):
        epp |= {"pluginsConfigFile": "p.yaml", "pluginsCustomConfig": {"p.yaml": json.dumps(plugins)}}
    return json.dumps({"router": {"epp": epp}})


def test_each_guide_is_in_a_table() -> None:
    assert GUIDES.keys() == POLICIES.keys() | REFUSED.keys()


@pytest.mark.parametrize("guide", POLICIES)
def test_a_guide_migrates_to_a_configuration_that_starts(guide: str) -> None:
    ours, _, _ = migrate({guide: values_of(guide)})
    config = parse_picker_config(json.dumps(ours["endpointPickerConfig"]), guide)
    assert meaning_of(config, guide).sections["policy"]["name"] == POLICIES[guide]


@pytest.mark.parametrize("guide", REFUSED)
def test_a_guide_that_cannot_be_honoured_is_refused_with_what_to_do(guide: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[guide]):
        migrate({guide: values_of(guide)})
