"""Helm, where `deploy/k8s/install_helm.sh` put it or on PATH, and what it makes of the chart.

python -m deploy.k8s.helm      # write deploy/k8s/manifests/ again
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

K8S = Path(__file__).resolve().parent
CHART, EXAMPLES, MANIFESTS = K8S / "chart", K8S / "examples", K8S / "manifests"
#: The Kubernetes that charts are rendered for; a Helm from its module would assume 1.20.
KUBE_VERSION = "1.34"
NAMESPACE = "inference"
RELEASE = "gorgo-epp"
#: Examples that are kept as plain manifests, too.
PLAIN = ("gateway", "multi-region", "standalone")

_TIMEOUT_S = 120


class HelmError(RuntimeError):
    """Helm is not there, or refuses; the text is its own."""


def cache() -> Path:
    """Return the folder that `deploy/k8s/install_helm.sh` fills."""
    if named := os.environ.get("EPP_HELM_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gorgo-epp" / f"helm-{_version('helm')}"


def _version(name: str) -> str:
    """``helm`` or ``oldest``, as `deploy/k8s/install_helm.sh` pins them."""
    text = (Path(__file__).parent / "install_helm.sh").read_text()
    version = re.search(rf"^{name}_version=(.*)$", text, re.MULTILINE)
    if version is None:
        raise HelmError(f"deploy/k8s/install_helm.sh names no {name} version")
    return version[1]


def find_helm() -> Path:
    """Return the binary.

    Raises:
        HelmError: there is none.
    """
    installed = cache() / "helm"
    found = str(installed) if installed.is_file() else shutil.which("helm")
    if found is None:
        raise HelmError("no Helm: run `make helm`, which installs it outside the tree")
    return Path(found)


def find_oldest_helm() -> Path:
    """Return the binary of the oldest Helm that the chart works with.

    Raises:
        HelmError: `deploy/k8s/install_helm.sh` has not installed it.
    """
    installed = cache() / _version("oldest") / "helm"
    if not installed.is_file():
        raise HelmError("no oldest Helm: run `make helm`, which installs it outside the tree")
    return installed


def helm(*words: str, kubeconfig: Path | None = None, binary: Path | None = None) -> str:
    """Run it, or another binary of it; what it printed.

    Raises:
        HelmError: it is not there, or ended with an error.
    """
    # No cluster of the user's is ever reached.
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(  # noqa: S603  # our own words
        [str(binary or find_helm()), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
    )
    if done.returncode:
        raise HelmError(done.stderr or done.stdout)
    return done.stdout


def template(*words: str, chart: Path = CHART, binary: Path | None = None) -> str:
    """Render the chart's objects, as YAML.

    Raises:
        HelmError: as `helm`.
    """
    place = (str(chart), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION)
    return helm("template", RELEASE, *place, *words, binary=binary)


def manifest(name: str) -> str:
    """Render an example as a plain manifest, without what only Helm has a use for.

    Raises:
        HelmError: as `helm`.
    """
    # Dashboard and alerts are files of their own beside them.
    bare = [f"monitoring.{each}.enabled=false" for each in ("dashboard", "prometheusRule")]
    text = template("--values", str(EXAMPLES / f"{name}.yaml"), "--set", ",".join(bare))
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", "", text, flags=re.MULTILINE)
    head = f"# Made from the chart and deploy/k8s/examples/{name}.yaml by `make manifests`; change those.\n"
    return f"{head}# kubectl create namespace {NAMESPACE} && kubectl apply -f {name}.yaml\n{text}"


def main() -> None:
    """Write the plain manifests."""
    MANIFESTS.mkdir(exist_ok=True)
    for name in PLAIN:
        (MANIFESTS / f"{name}.yaml").write_text(manifest(name))


if __name__ == "__main__":
    main()
