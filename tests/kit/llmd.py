"""A picker called as llm-d's charts call theirs, and two of llm-d's configurations with flow control."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import aiohttp

from tests.kit import kubeobjects as objects
from tests.kit.forked import Forked
from tests.kit.kubefollow import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def loopback(address: str) -> str:
    return "127.0.0.1:" + address.rpartition(":")[2]


@asynccontextmanager
async def picker_by_flags(folder: Path, plugins: str, *words: str) -> AsyncIterator[dict[str, str]]:
    """Its addresses once it is ready; the cluster is that of ``KUBECONFIG``."""
    config, ready = folder / "default-plugins.yaml", folder / "ready.json"
    config.write_text(plugins)
    common = [
        "serve", "--pool-namespace", objects.NAMESPACE, "--config-file", str(config), "--ready-file", str(ready),
        "--grpc-health-port", "0", "--grpc-port", "0", "--metrics-port", "0",
    ]  # fmt: skip
    async with Forked("picker", [*common, *words], folder) as child, aiohttp.ClientSession() as http:
        async with asyncio.timeout(PATIENCE_S):
            await child.until(ready.exists)
            addresses = json.loads(ready.read_text())
            while not await _is_ready(http, loopback(addresses["http"])):
                await asyncio.sleep(0.05)
        yield addresses


async def _is_ready(http: aiohttp.ClientSession, picker: str) -> bool:
    with suppress(aiohttp.ClientError):  # it may close a connection that is asked on just then
        async with http.get(f"http://{picker}/readyz") as answer:
            return answer.status == 200
    return False


_HEAD = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
"""
#: Bands by round robin, and saturation by requests in flight.
BANDS = f"""{_HEAD}
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: round-robin-fairness-policy
- {{type: slo-deadline-ordering-policy, name: deadlines}}
- {{type: priority-holdback-policy, parameters: {{minCeiling: 0.5}}}}
- {{type: concurrency-detector, parameters: {{maxConcurrency: 2}}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: priority-holdback-policy
  maxBytes: 10Gi
  maxRequests: 1k
  defaultRequestTTL: 20s
  noEndpointRequestTTL: 1s
  defaultNegativePriorityBand: {{maxRequests: "1"}}
  priorityBands:
  - {{priority: 9, maxRequests: 500, maxBytes: 1M, fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef: deadlines}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: queue-scorer, weight: 2}}, {{pluginRef: prefix-cache-scorer, weight: 3}}]
"""
#: Programs by attained service, and saturation by what engines report.
PROGRAMS = f"""{_HEAD}
plugins:
- {{type: program-aware-fairness, parameters: {{lasHalfLifeSeconds: 30}}}}
- type: soft-reflective-ceiling-policy
- type: queue-scorer
flowControl:
  defaultPriorityBand: {{fairnessPolicyRef: program-aware-fairness}}
  usageLimitPolicyPluginRef: soft-reflective-ceiling-policy
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: queue-scorer}}]
"""
#: Values of llm-d's guide for prefill and decode.
PARTED = """
router:
  extraServicePorts: [{name: http, port: 80, protocol: TCP, targetPort: 8081}]
  epp:
    replicas: 1
    pluginsConfigFile: pd-config.yaml
    pluginsCustomConfig:
      pd-config.yaml: |
        apiVersion: llm-d.ai/v1
        kind: EndpointPickerConfig
        plugins:
        - type: always-disagg-pd-decider
        - {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
        - type: prefill-filter
        - type: decode-filter
        - {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 131072}}
        - type: inflight-load-producer
        - {type: prefix-cache-affinity-filter, parameters: {peakPrefillThroughput: 33821}}
        - type: token-load-scorer
        - type: active-request-scorer
        - type: max-score-picker
        schedulingProfiles:
        - name: prefill
          plugins:
          - pluginRef: prefill-filter
          - pluginRef: prefix-cache-affinity-filter
          - pluginRef: token-load-scorer
          - pluginRef: max-score-picker
        - name: decode
          plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]
  modelServers:
    matchLabels: {llm-d.ai/guide: pd-disaggregation}
"""
