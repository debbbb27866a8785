"""The chart as a package of a registry, and one version on all that is released."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from deploy.k8s.helm import (
    CHART,
    EXAMPLES,
    KUBE_VERSION,
    NAMESPACE,
    RELEASE,
    HelmError,
    cache,
    helm,
    template,
)
from epp import __version__
from tests.kit.chart import require_helm
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def find_registry() -> Path:
    """A registry's binary."""
    if not (found := cache() / "registry").is_file():
        raise HelmError("no registry: run `make helm`")
    return found


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run a registry; its address."""
    address = f"127.0.0.1:{free_ports()}"
    config = folder / "registry.yaml"
    config.write_text(json.dumps({"version": 0.1, "storage": {"inmemory": {}}, "http": {"addr": address}}))
    with subprocess.Popen((find_registry(), "serve", config), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            next(line for line in process.stderr if "listening on" in line)
            yield address
        finally:
            process.terminate()


def test_the_chart_renders_from_a_registry_as_from_its_folder(tmp_path: Path) -> None:
    require_helm()
    require_helm(find_registry)
    values = ("--values", str(EXAMPLES / "gateway.yaml"))
    helm("package", str(CHART), "--destination", str(tmp_path))
    with registry(tmp_path) as address:
        helm(
            "push", str(tmp_path / f"gorgo-epp-{__version__}.tgz"), f"oci://{address}/charts", "--plain-http"
        )
        chart = (f"oci://{address}/charts/gorgo-epp", "--version", __version__, "--plain-http")
        where = ("--namespace", NAMESPACE, "--kube-version", KUBE_VERSION)
        text = helm("template", RELEASE, *chart, *where, *values)
    assert text == template(*values)


def test_all_that_is_released_has_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"], heading[1], lab["version"]} == {__version__}
    assert f"gorgo-epp=={__version__}" in lab["dependencies"]
