"""Values that the chart refuses while it is rendered, with what to do instead."""

from __future__ import annotations

import pytest

from tests.kit.chart import pods, refused, rendered

APP = "endpoints.matchLabels.app=vllm"
STANDALONE = ("standalone.enabled=true", "endpoints.from=selector", APP)

REFUSALS = [
    ((), "endpoints.matchLabels is empty"),
    (("endpoints.from=service",), "endpoints.service is empty"),
    (("endpoints.from=list",), "endpoints.list is empty"),
    ((APP, "tls.mode=secret"), "tls.secretName"),
    ((APP, "httpRoute.create=true"), "httpRoute.gateway.name"),
    ((APP, "tuner.enabled=true", "replicas=2"), "shared.existingClaim"),
    ((APP, "tuner.enabled=true", "records.enabled=false"), "needs records.enabled"),
    ((APP, "learner.enabled=true", "replicas=2"), "one learner reads the records"),
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
    ((APP, "shared.sizeLimit=1.5G", "records.maxBytes=1600000000"), "lower records.maxBytes"),
    ((*STANDALONE, "standalone.listenHost=[::]"), "listenHost"),
    ((APP, f"nameOverride={'x' * 64}"), "nameOverride"),
    ((APP, "replica=2"), "replica"),
    ((APP, "replicas=two"), "integer"),
    ((APP, "tls.mode=maybe"), "mode"),
    ((APP, "endpoints.targetPorts={70000}"), "65,535"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), REFUSALS)
def test_what_cannot_work_is_refused_in_words(settings: tuple[str, ...], words: str) -> None:
    assert words in refused(*settings)


@pytest.mark.parametrize("settings", [
    ("shared.sizeLimit=1.5G",),
    ("shared.sizeLimit=2000000000",),
    ("shared.existingClaim=mine", "records.maxBytes=1000000000000"),
    ("records.enabled=false", "shared.sizeLimit=1Mi"),
])  # fmt: skip
def test_records_that_fit_their_volume_are_taken(settings: tuple[str, ...]) -> None:
    assert pods(rendered(APP, *settings))
