from __future__ import annotations

import shutil
import ssl
import sys
from typing import TYPE_CHECKING

import pytest

from epp.config.kubernetes import Kubernetes
from epp.kube.api import KubeApi, Surroundings, namespace_of
from epp.kube.problems import KubeError, Reason
from tests.kit.certificates import self_signed
from tests.kit.kubefollow import kubeconfig, nowhere
from tests.kit.kubeserver import KubeServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PODS = "/api/v1/namespaces/llm/pods"


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    server = KubeServer()
    server.tokens = {"first"}
    await server.start()
    yield server
    await server.stop()


def settings(path: Path | str = "") -> Kubernetes:
    return Kubernetes(service="llm", kubeconfig=str(path))


async def reason_of(api: KubeApi) -> Reason | None:
    """What a call answers: nothing, or why it failed."""
    try:
        await api.get(PODS, {})
    except KubeError as error:
        return error.reason
    return None


async def test_a_token_file_is_read_again_when_its_token_is_refused(
    server: KubeServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    path = kubeconfig(tmp_path / "config", server.url, token_file=str(token))
    api = KubeApi(settings(path), nowhere(tmp_path))
    assert await reason_of(api) is None
    token.write_text("second\n")
    server.tokens = {"second"}
    assert await reason_of(api) is Reason.UNAUTHORIZED
    assert await reason_of(api) is None
    await api.close()


async def test_a_plugin_is_asked_for_credentials_and_its_failure_is_told(
    server: KubeServer, tmp_path: Path
) -> None:
    answer = tmp_path / "answer.json"
    credential = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
    answer.write_text(credential % "first")
    script = f"import sys; sys.stdout.write(open({str(answer)!r}).read())"
    path = kubeconfig(tmp_path / "config", server.url, plugin=[sys.executable, "-c", script])
    api = KubeApi(settings(path), nowhere(tmp_path))
    assert await reason_of(api) is None
    answer.write_text(credential % "second")
    server.tokens = {"second"}
    assert await reason_of(api) is Reason.UNAUTHORIZED
    assert await reason_of(api) is None
    answer.write_text("no JSON")
    server.tokens = {"third"}
    assert await reason_of(api) is Reason.UNAUTHORIZED
    assert await reason_of(api) is Reason.CREDENTIALS
    answer.write_text(credential % "third")
    assert await reason_of(api) is None
    await api.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
async def test_in_a_cluster_the_service_account_is_used_verified_and_rotated(
    tmp_path: Path,
) -> None:
    certificate = self_signed(tmp_path / "server.crt", tmp_path / "server.key", "kubernetes")
    other = tmp_path / "elsewhere"
    other.mkdir()
    self_signed(other / "ca.crt", other / "key.pem", "kubernetes")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    server = KubeServer(tls=context)
    server.tokens = {"first"}
    await server.start()
    shutil.copy(certificate[0], tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("own\n")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    around = Surroundings(environ, service_account=tmp_path, home=tmp_path)
    api = KubeApi(settings(), around)
    assert await reason_of(api) is None
    server.tokens = {"second"}
    (tmp_path / "token").write_text("second")
    assert await reason_of(api) is Reason.UNAUTHORIZED, "the library reads the file once a minute"
    assert await reason_of(api) is None, "but a refusal makes it read at once"
    await api.close()
    (other / "token").write_text("second")
    stranger = KubeApi(settings(), Surroundings(environ, service_account=other))
    with pytest.raises(KubeError, match="TLS with the API server fails"):
        await stranger.get(PODS, {})
    shutil.copy(certificate[0], other / "ca.crt")
    assert await reason_of(stranger) is None, "a CA that is replaced is read without a restart"
    await stranger.close()
    await server.stop()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file config"),
        ("{", "cannot use the credentials"),
        ("current-context: x\nclusters: []\ncontexts: []\nusers: []\n", "cannot use the credentials"),
    ],
)
async def test_an_unusable_kubeconfig_is_told_and_never_fatal(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    api = KubeApi(settings("config"), nowhere(tmp_path))
    with pytest.raises(KubeError, match=words) as caught:
        await api.get(PODS, {})
    assert caught.value.reason is Reason.CREDENTIALS


async def test_outside_of_everything_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match=r"set pool\.kubernetes\.kubeconfig"):
        await KubeApi(settings(), nowhere(tmp_path)).get(PODS, {})


@pytest.mark.parametrize(
    ("configured", "environ", "account", "expected"),
    [
        ("mine", {"NAMESPACE": "env"}, "own", "mine"),
        ("", {"NAMESPACE": "env"}, "own", "env"),
        ("", {}, "own\n", "own"),
        ("", {}, None, "default"),
    ],
)
def test_the_namespace_is_the_first_that_is_named(
    tmp_path: Path, configured: str, environ: dict[str, str], account: str | None, expected: str
) -> None:
    if account is not None:
        (tmp_path / "namespace").write_text(account)
    around = Surroundings(environ, service_account=tmp_path)
    assert namespace_of(Kubernetes(service="llm", namespace=configured), around) == expected
