from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from epp.clock import ManualClock
from epp.config.kubernetes import Kubernetes
from epp.kube.api import KubeApi
from epp.kube.credentials import REFRESH_S, Surroundings, namespace_of
from epp.kube.problems import KubeError, Reason
from tests.kit.certificates import self_signed
from tests.kit.kubefollow import kubeconfig, nowhere
from tests.kit.kubeserver import KubeServer
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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


async def test_a_token_of_a_kubeconfig_is_used_and_its_change_found_when_it_is_refused(
    server: KubeServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", server.url, token="first")
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    assert await reason_of(api) is None
    server.tokens = {"second"}
    assert await reason_of(api) is Reason.UNAUTHORIZED
    kubeconfig(path, server.url, token="second")
    assert await reason_of(api) is None
    await api.close()


async def test_a_token_file_is_read_again_before_anybody_refuses_it(
    server: KubeServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    clock = ManualClock()
    path = kubeconfig(tmp_path / "config", server.url, token_file=str(token))
    api = KubeApi(settings(path), nowhere(tmp_path), clock)
    assert await reason_of(api) is None
    token.write_text("second\n")
    server.tokens = {"second"}
    clock.advance(REFRESH_S + 1)
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
    clock = ManualClock()
    api = KubeApi(settings(path), nowhere(tmp_path), clock)
    assert await reason_of(api) is None
    answer.write_text(credential % "second")
    server.tokens = {"second"}
    clock.advance(REFRESH_S + 1)
    assert await reason_of(api) is None
    answer.write_text("no JSON")
    clock.advance(REFRESH_S + 1)
    assert await reason_of(api) is Reason.CREDENTIALS
    answer.write_text(credential % "second")
    clock.advance(REFRESH_S + 1)
    assert await reason_of(api) is None
    await api.close()


async def test_a_plugin_that_hangs_is_ended_with_what_it_began_and_told(
    server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kube.credentials.PLUGIN_S", 1.0)
    begun = tmp_path / "begun"
    script = f"sleep 100000 & echo $! > {begun}; wait"
    path = kubeconfig(tmp_path / "config", server.url, plugin=["sh", "-c", script])
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    with pytest.raises(KubeError, match="the plugin sh did not answer within 1 s") as caught:
        await api.get(PODS, {})
    assert caught.value.reason is Reason.CREDENTIALS
    # Killed; nobody may have fetched its end yet.
    status = Path(f"/proc/{begun.read_text().strip()}/stat")
    await until(lambda: not status.exists() or status.read_text().split()[2] == "Z")
    await api.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of how the library calls aiohttp
async def test_an_issuer_of_tokens_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    monkeypatch.setattr("epp.kube.credentials.LOAD_S", 0.2)
    ended = asyncio.Event()
    asked = await asyncio.start_server(hang, "127.0.0.1", 0)
    issuer = f"http://127.0.0.1:{asked.sockets[0].getsockname()[1]}"
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="none")
    content = yaml.safe_load(path.read_text())
    oidc = {"client-id": "a", "client-secret": "b", "idp-issuer-url": issuer, "refresh-token": "c"}
    content["users"][0]["user"] = {"auth-provider": {"name": "oidc", "config": oidc}}
    path.write_text(yaml.safe_dump(content))
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    with pytest.raises(KubeError, match=r"cannot use the credentials: no answer within 0\.2 s"):
        await api.get(PODS, {})
    await api.close()
    await ended.wait()
    asked.close()


async def test_a_plugin_that_is_not_there_is_told(server: KubeServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", server.url, plugin=["no-such-plugin"])
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    with pytest.raises(KubeError, match="No such file or directory: 'no-such-plugin'"):
        await api.get(PODS, {})
    await api.close()


async def test_a_call_that_waits_for_credentials_while_others_are_refused_fails_as_calls_do(
    server: KubeServer, tmp_path: Path
) -> None:
    """Whoever is refused closes the connections that all share, and one may still wait for its plugin."""
    asked, go = tmp_path / "asked", tmp_path / "go"
    script = (
        "import json, os, sys, time\n"
        f"open({str(asked)!r}, 'w')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "credential = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "sys.stdout.write(json.dumps({**credential, 'status': {'token': 'first'}}))\n"
    )
    path = kubeconfig(tmp_path / "config", server.url, plugin=[sys.executable, "-c", script])
    clock = ManualClock()
    api = KubeApi(settings(path), nowhere(tmp_path), clock)
    go.touch()
    assert await reason_of(api) is None
    for file in (asked, go):
        file.unlink()
    clock.advance(REFRESH_S + 1)
    waits = asyncio.ensure_future(reason_of(api))
    await until(asked.exists)
    server.tokens = {"second"}
    assert await reason_of(api) is Reason.UNAUTHORIZED
    go.touch()
    assert await waits is Reason.UNREACHABLE
    server.tokens = {"first"}
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
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("own\n")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    around = Surroundings(environ, service_account=tmp_path, home=tmp_path)
    api = KubeApi(settings(), around, ManualClock())
    assert await reason_of(api) is None
    server.tokens = {"second"}
    (tmp_path / "token").write_text("second")
    assert await reason_of(api) is Reason.UNAUTHORIZED, "the library reads the file once a minute"
    assert await reason_of(api) is None, "but a refusal makes it read at once"
    await api.close()
    (other / "token").write_text("second")
    stranger = KubeApi(settings(), Surroundings(environ, service_account=other), ManualClock())
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
        ("", "cannot use the credentials"),
        ("- a list", "cannot use the credentials"),
        ("{", "cannot use the credentials"),
        ("clusters: []\ncontexts: []\nusers: []\n", "cannot use the credentials"),
        ("current-context: x\nclusters: []\ncontexts: []\nusers: []\n", "cannot use the credentials"),
    ],
)
async def test_an_unusable_kubeconfig_is_told_and_never_fatal(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    api = KubeApi(settings("config"), nowhere(tmp_path), ManualClock())
    with pytest.raises(KubeError, match=words) as caught:
        await api.get(PODS, {})
    assert caught.value.reason is Reason.CREDENTIALS


async def test_a_file_of_credentials_that_never_answers_stops_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kube.credentials.LOAD_S", 0.3)
    os.mkfifo(tmp_path / "fifo")
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token_file=str(tmp_path / "fifo"))
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    assert await reason_of(api) is Reason.CREDENTIALS
    await api.close()


async def test_outside_of_everything_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match=r"set pool\.kubernetes\.kubeconfig"):
        await KubeApi(settings(), nowhere(tmp_path), ManualClock()).get(PODS, {})


async def test_the_environment_names_a_kubeconfig(server: KubeServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "named", server.url, token="first")
    for around in (
        Surroundings({"KUBECONFIG": f"/nowhere:{path}"}, service_account=tmp_path, home=tmp_path),
        Surroundings({}, service_account=tmp_path, home=tmp_path),
    ):
        api = KubeApi(settings(), around, ManualClock())
        assert await reason_of(api) is None
        await api.close()
        (tmp_path / ".kube").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / ".kube" / "config")


async def test_an_api_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", token="first")
    api = KubeApi(settings(path), nowhere(tmp_path), ManualClock())
    assert await reason_of(api) is Reason.UNREACHABLE
    await api.close()


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
