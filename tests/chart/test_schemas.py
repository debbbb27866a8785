"""Every object of every example, against the schemas that an API server would check it with."""

from __future__ import annotations

import os
from functools import cache as memo
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.k8s.helm import KUBE_VERSION, cache
from tests.kit.chart import EXAMPLE_NAMES, example, require_helm

if TYPE_CHECKING:
    from tests.kit.chart import Object

#: Groups whose kinds are custom resources with a CRD among those fetched.
CUSTOM = (
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "inference.networking.x-k8s.io",
    "monitoring.coreos.com",
    "networking.istio.io",
)


@memo
def crds() -> dict[tuple[str, str, str], Object]:
    """Schemas by group, version and kind."""
    found = {}
    for path in sorted((cache() / "crds").glob("*.yaml")):
        for crd in yaml.safe_load_all(path.read_text()):
            if not crd or crd["kind"] != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                key = spec["group"], version["name"], spec["names"]["kind"]
                found[key] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema: Any) -> Any:
    """The schema with unknown fields as errors, as `kubectl` treats them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # Alternatives name a part of the fields each: they stay open.
    apart = ("default", "oneOf", "anyOf", "allOf", "not")
    made = {key: value if key in apart else closed(value) for key, value in schema.items()}
    if schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", schema.get("additionalProperties", False))
    return made


def require_crds() -> None:
    require_helm()
    if not crds():
        words = "no CRDs: run `make helm`, which fetches them by Go"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


def check(target: Object) -> None:
    """Raises where an API server would refuse."""
    group, _, version = target["apiVersion"].rpartition("/")
    if group == "networking.gke.io":
        return  # Google publishes its CRDs inside clusters alone
    if group in CUSTOM:
        schema = crds()[group, version, target["kind"]]
        given = {key: value for key, value in target.items() if key != "metadata"}
        # Every object has these, whether or not its CRD says so.
        properties = {**schema["properties"], "apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        jsonschema.Draft202012Validator({**schema, "properties": properties}).validate(given)
    else:
        kubernetes_validate.validate(target, KUBE_VERSION, strict=True)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_object_is_what_its_kind_allows(name: str) -> None:
    require_crds()
    objects = example(name)
    assert objects
    for each in objects:
        check(each)
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "gorgo-epp"
