"""Values that the chart refuses while it is rendered, with what to do instead."""

from __future__ import annotations

import pytest

from tests.chart.test_envoy import RELAYED
from tests.kit.chart import refused

APP = "endpoints.matchLabels.app=vllm"
LIST = ("standalone.enabled=true", "endpoints.from=list", "endpoints.list[0].address=10.0.0.1:8000")
STANDALONE = ("standalone.enabled=true", "endpoints.from=selector", APP)

REFUSALS = [
    ((), "endpoints.matchLabels is empty"),
    (("endpoints.from=list",), "endpoints.list is empty"),
    ((APP, "tls.mode=secret"), "tls.secretName"),
    ((APP, "httpRoute.create=true"), "httpRoute.gateway.name"),
    ((APP, "tuner.enabled=true", "replicas=2"), "shared.existingClaim"),
    ((APP, "learner.enabled=true", "records.enabled=false"), "needs records.enabled"),
    (
        (APP, "learner.enabled=true", "tuner.enabled=true", "config.policy.name=lodestar"),
        "both write the weights file",
    ),
    ((APP, "standalone.enabled=true"), "endpoints.from=selector"),
    (("endpoints.from=list", "endpoints.list[0].address=10.0.0.1:80"), "standalone.enabled=true"),
    ((*STANDALONE, "config.policy.fallbacks=2"), "config.policy.fallbacks"),
    (("inferencePool.create=false",), "inferencePool.name"),
    ((APP, "endpointPickerConfig.kind=EndpointPickerConfig", "config.policy.seed=1"), "epp-settings"),
    ((APP, "records.maxBytes=2147483648"), "shared.sizeLimit is 2Gi, and records alone may grow to 2147483648"),
    ((*STANDALONE, "standalone.listenHost=[::]"), "listenHost"),
    ((*LIST, "config.request.max_body_bytes=1000"), "say maxBodyBytes"),
    ((*LIST, "config.relays.compression=gzip"), "config.relays.compression reaches no Envoy"),
    ((*RELAYED, "tier=relay", "region=us"), 'region "us" has no relay: set region to one of relays.regions'),
    ((APP, "nats.url=nats://n"), "nats.url needs prefixSecret"),
    ((APP, "nats.url=nats://n", "nats.server.enabled=true", "prefixSecret=s"), "one of them says where NATS is"),
    ((APP, "nats.url=nats://n", "prefixSecret=s", "endpointPickerConfig.kind=EndpointPickerConfig"), "epp-settings"),
    (("tier=relay", APP), 'region "" has no relay'),
    ((*RELAYED, "tier=region", "region=us"), 'region "us" has no relay: set region to one of relays.regions'),
    ((*RELAYED, "tier=region", "region=eu"), "tier=region needs nats.url"),
    ((*RELAYED, "endpoints.list[0].region=us"), "which has no relay"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), REFUSALS)
def test_what_cannot_work_is_refused_in_words(settings: tuple[str, ...], words: str) -> None:
    assert words in refused(*settings)
