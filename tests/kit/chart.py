"""The chart as tests see it: whether there is a Helm, examples and values rendered to objects."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.helm import EXAMPLES, HelmError, find_helm, template

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Object = dict[str, Any]
EXAMPLE_NAMES = tuple(sorted(path.stem for path in EXAMPLES.glob("*.yaml")))


def require_helm(find: Callable[[], Path] = find_helm) -> Path:
    """Skip the calling test without a Helm, saying so; on CI that is a failure.

    Args:
        find: which Helm: `find_helm` or `find_oldest_helm`.
    """
    try:
        return find()
    except HelmError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def objects_of(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


@lru_cache(maxsize=64)
def _text(words: tuple[str, ...]) -> str:
    return template(*words)


def example(name: str, *words: str) -> list[Object]:
    """Objects of an example, with further words for Helm."""
    require_helm()
    return objects_of(_text(("--values", str(EXAMPLES / f"{name}.yaml"), *words)))


def rendered(*settings: str) -> list[Object]:
    """Objects of values given as with ``--set``."""
    require_helm()
    return objects_of(_text(tuple(word for each in settings for word in ("--set", each))))


def refused(*settings: str) -> str:
    """What Helm says to values that it has to refuse."""
    require_helm()
    with pytest.raises(HelmError) as caught:
        template(*(word for each in settings for word in ("--set", each)))
    return str(caught.value)


def find(objects: list[Object], kind: str, name: str = "gorgo-epp") -> Object:
    """The only object of a kind and name."""
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def kinds(objects: list[Object]) -> set[str]:
    return {each["kind"] for each in objects}


def pods(objects: list[Object]) -> list[Object]:
    """Specs of the pods that an installation runs."""
    return [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]


def container(objects: list[Object], name: str, deployment: str = "gorgo-epp") -> Object:
    found = find(objects, "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    chosen: Object = next(each for each in found if each["name"] == name)
    return chosen
