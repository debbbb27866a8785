"""Names that look like numbers or truths stay texts: Kubernetes refuses anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deploy.k8s.helm import CHART, EXAMPLES, KUBE_VERSION, helm
from tests.kit.chart import EXAMPLE_NAMES, objects_of, require_helm

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASE, NAMESPACE = "700001", "700002"
NAMED = (
    "fullnameOverride", "nameOverride", "serviceAccount.name", "inferencePool.name", "prefixSecret", "tls.secretName",
    "shared.existingClaim", "priorityClassName", "relays.secretName", "httpRoute.gateway.name",
    "httpRoute.gateway.namespace", "httpRoute.gateway.sectionName", "provider.istio.credentialName",
)  # fmt: skip
NUMBERS = {name: str(700010 + place) for place, name in enumerate(NAMED)}


def leaves(value: Any) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.keys()
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


@pytest.mark.parametrize(
    ("name", "further"),
    [
        *((name, ()) for name in EXAMPLE_NAMES),
        ("gateway", ("httpRoute.create=true",)),
        ("istio", ("tls.mode=secret",)),
    ],
)
def test_names_of_digits_are_texts(name: str, further: tuple[str, ...]) -> None:
    require_helm()
    text = helm(
        "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION,
        "--values", str(EXAMPLES / f"{name}.yaml"),
        *(word for key, number in NUMBERS.items() for word in ("--set-string", f"{key}={number}")),
        *(word for each in further for word in ("--set", each)),
    )  # fmt: skip
    found = set(leaves(objects_of(text)))
    assert {RELEASE, NAMESPACE, NUMBERS["fullnameOverride"]} <= found
    numbers = {int(number) for number in (RELEASE, NAMESPACE, *NUMBERS.values())}
    assert not numbers & {leaf for leaf in found if isinstance(leaf, int)}
