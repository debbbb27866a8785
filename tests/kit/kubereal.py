"""A real kube-apiserver on a real etcd, for the cases that a server of our own should not be trusted with.

`make test-k8s-real` builds the one and unpacks the other and says where they are in ``KUBE_APISERVER`` and
``ETCD``. Static tokens: ``admin`` may do anything, ``picker`` what its ClusterRole says.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.kit.ports import free_ports

#: How long either process may take to be ready: far more than it needs on any machine.
PATIENCE_S = 240.0
ADMIN, PICKER = "admin-token", "picker-token"


def binaries() -> tuple[Path, Path] | None:
    """The API server and etcd, None when this machine has not been given them."""
    named = [Path(os.environ.get(name, "")) for name in ("KUBE_APISERVER", "ETCD")]
    return (named[0], named[1]) if all(path.is_file() for path in named) else None


class RealKube:
    """Both processes.

    Args:
        folder: where they keep everything.
    """

    def __init__(self, folder: Path) -> None:
        found = binaries()
        assert found is not None
        self._apiserver, self._etcd = found
        self._folder = folder
        self._etcd_url = f"http://127.0.0.1:{free_ports()}"
        self.port = free_ports()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._prepare()

    def start(self) -> None:
        self._run("etcd", [
            str(self._etcd), "--data-dir", str(self._folder / "etcd"), "--listen-client-urls", self._etcd_url,
            "--advertise-client-urls", self._etcd_url, "--listen-peer-urls", f"http://127.0.0.1:{free_ports()}",
            "--unsafe-no-fsync",
        ])  # fmt: skip
        self._await(f"{self._etcd_url}/health")
        self.start_apiserver()

    def start_apiserver(self) -> None:
        folder = self._folder
        self._run("apiserver", [
            str(self._apiserver), f"--etcd-servers={self._etcd_url}", f"--secure-port={self.port}",
            # Named, or it wants a default route, which a network of a test's own has not.
            "--bind-address=127.0.0.1", "--advertise-address=198.18.0.1", f"--cert-dir={folder / 'certs'}", "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://test", f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none", "--etcd-compaction-interval=0", "--profiling=false",
        ])  # fmt: skip
        self._await(f"https://127.0.0.1:{self.port}/readyz")

    def stop_apiserver(self) -> None:
        self._stop("apiserver")

    def compact(self) -> None:
        """Make etcd forget: together with a restart of the API server nobody can resume from before."""
        now = json.loads(self._etcd_call("/v3/kv/range", {"key": "AA=="}))["header"]["revision"]
        self._etcd_call("/v3/kv/compaction", {"revision": now, "physical": True})

    def stop(self) -> None:
        for name in ("apiserver", "etcd"):
            self._stop(name)

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        key = self._folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self._folder / "tokens.csv").write_text(
            f'{ADMIN},admin,1,"system:masters"\n{PICKER},picker,2,"pickers"\n'
        )

    def _run(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _etcd_call(self, path: str, body: dict[str, object]) -> bytes:
        request = urllib.request.Request(f"{self._etcd_url}{path}", json.dumps(body).encode())  # noqa: S310  # ours
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # ours
            content: bytes = answer.read()
        return content

    def _await(self, url: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN}"})  # noqa: S310  # ours
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                handler = context if url.startswith("https") else None
                with urllib.request.urlopen(request, timeout=5, context=handler):  # noqa: S310  # ours
                    return
            except (OSError, urllib.error.HTTPError):
                assert time.monotonic() < deadline_s, f"{url} does not answer; see the logs in {self._folder}"
                time.sleep(0.2)
