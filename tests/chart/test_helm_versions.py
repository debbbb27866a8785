"""The oldest Helm that the chart works with, and older ones; test_release.py upgrades with it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deploy.k8s.helm import CHART, EXAMPLES, HelmError, find_oldest_helm, template
from tests.kit.chart import EXAMPLE_NAMES, example, objects_of, require_helm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_the_oldest_helm_renders_the_same(name: str) -> None:
    text = template("--values", str(EXAMPLES / f"{name}.yaml"), binary=require_helm(find_oldest_helm))
    assert objects_of(text) == example(name)


def test_a_helm_that_is_too_old_is_refused(tmp_path: Path) -> None:
    require_helm()
    chart = shutil.copytree(CHART, tmp_path / "chart")
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(helpers.read_text().replace("<3.14.0-0", "<99.0.0-0"))
    with pytest.raises(HelmError, match=r"Helm 3\.14 or newer is needed, and this is v"):
        template("--set", "endpoints.matchLabels.app=vllm", chart=chart)
