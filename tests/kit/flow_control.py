"""Two configurations of llm-d with flow control, for tests."""

from __future__ import annotations

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
