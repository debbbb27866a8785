"""Envoy Gateway itself on a real API server: its Envoy, our manifest, our picker, simulated replicas.

Nobody runs pods there, so the tests do a kubelet's work: they start Envoy as the Deployment says that Envoy Gateway
made, and write the EndpointSlices. `make test-gateway` builds all that it takes.
"""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from epp.envoy.child import Child
from epp.envoy.process import find_envoy
from epp.envoy.settings import EnvoySettings
from epp_lab.sim.http import SimReplica
from tests.gateways import shapes
from tests.gateways.rig import DESTINATION
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubeobjects import KubeClient
from tests.kit.kubereal import ADMIN, RealKube, binaries
from tests.kit.picker import CONFIG, PickerProcess
from tests.kit.replicas import CHAT, chat_body, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

MANIFEST = Path(__file__).parents[2] / "deploy/k8s/envoy-gateway.yaml"
SYSTEM, NAMESPACE = "envoy-gateway-system", "inference"
PICKER, REPLICAS = "198.18.0.1", ("198.18.0.11", "198.18.0.12")
GATEWAY, SLICES = "gateway.networking.k8s.io/v1", "discovery.k8s.io/v1"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
SETTINGS = {
    "apiVersion": "gateway.envoyproxy.io/v1alpha1",
    "kind": "EnvoyGateway",
    "gateway": {"controllerName": CONTROLLER},
    "provider": {
        "type": "Kubernetes",
        "kubernetes": {"leaderElection": {"disable": True}, "proxyTopologyInjector": {"disabled": True}},
    },
    # These ports would be Envoy's, which elsewhere is in another pod.
    "telemetry": {"metrics": {"prometheus": {"disable": True}}},
    "admin": {"address": {"host": "127.0.0.1", "port": 19010}},
    "extensionApis": {"enableBackend": True},
}
POLICIES = f"/apis/gateway.envoyproxy.io/v1alpha1/namespaces/{NAMESPACE}"
ADMIN_PAGE = "http://127.0.0.1:19000"
#: Fields that say where things are.
PLACES = dict.fromkeys(("name", "eds_cluster_config"))
PLURALS = {"GatewayClass": "gatewayclasses", "EnvoyExtensionPolicy": "envoyextensionpolicies",
           "BackendTrafficPolicy": "backendtrafficpolicies", "ClientTrafficPolicy": "clienttrafficpolicies",
           "EnvoyProxy": "envoyproxies"}  # fmt: skip


def path_of(made: dict[str, Any], *, named: bool = False) -> str:
    version, kind, metadata = made["apiVersion"], made["kind"], made["metadata"]
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    return f"/{'apis' if '/' in version else 'api'}/{version}{scope}/{plural}" + (
        f"/{metadata['name']}" if named else ""
    )


def service() -> list[dict[str, Any]]:
    """The engines, as the manifest's route names them."""
    port = {"name": "http", "port": 8000, "protocol": "TCP"}
    metadata = {"name": "vllm-llama", "namespace": NAMESPACE}
    labels = {"kubernetes.io/service-name": "vllm-llama"}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [port], "clusterIP": "None"}},
        {"apiVersion": SLICES, "kind": "EndpointSlice", "metadata": {**metadata, "labels": labels}, "ports": [port],
         "addressType": "IPv4", "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in REPLICAS]},
    ]  # fmt: skip


def gateway() -> list[dict[str, Any]]:
    listener = {"name": "http", "protocol": "HTTP", "port": 8888}
    return [
        {"apiVersion": GATEWAY, "kind": "GatewayClass", "metadata": {"name": "eg"}, "spec": {"controllerName": CONTROLLER}},
        {"apiVersion": GATEWAY, "kind": "Gateway", "metadata": {"name": "inference-gateway", "namespace": NAMESPACE},
         "spec": {"gatewayClassName": "eg", "listeners": [listener]}},
    ]  # fmt: skip


@dataclass
class Cluster:
    """All of it.

    Attributes:
        client: an administrator.
        folder: where files are.
        picker: ours.
        replicas: two.
        http: to Envoy.
    """

    client: KubeClient
    folder: Path
    picker: PickerProcess
    replicas: list[SimReplica]
    http: aiohttp.ClientSession

    async def create(self, *objects: dict[str, Any]) -> None:
        for made in objects:
            await self.client.call("POST", path_of(made), made)

    async def files(self, path: str, into: Path, **texts: str) -> None:
        """Write what a Secret or a ConfigMap holds."""
        found = await self.client.call("GET", f"/api/v1/namespaces/{SYSTEM}/{path}")
        for name, value in found["data"].items():
            text = base64.b64decode(value).decode() if path.startswith("secrets") else value
            for old, new in texts.items():
                text = text.replace(f"/{old}/", f"{new}/")
            (into / name).write_text(text)

    async def ask(self, **headers: str) -> tuple[int, str]:
        """Status of a chat, 0 while nobody listens, and who served it."""
        try:
            async with self.http.post(CHAT, json=chat_body("hello"), headers=headers) as answer:
                await answer.read()
                return answer.status, answer.headers.get("x-served-by", "")
        except aiohttp.ClientConnectorError:
            return 0, ""

    async def balances(self, headers: dict[str, str]) -> bool:
        """Whether all are served, by either."""
        answers = [await self.ask(**headers) for _ in range(10)]
        return {status for status, _ in answers} == {200} and len(set(answers)) == 2

    async def obeys(self, headers: dict[str, str], address: str) -> bool:
        """Whether a client's header chooses."""
        return {await self.ask(**headers) for _ in range(10)} == {(200, address)}

    async def decides(self) -> bool:
        """Whether the picker is asked."""
        status, _ = await self.ask()
        return status == 200 and await self.picker.metric("epp_decisions_total", basis="policy") > 0

    async def change(self, **fields: Any) -> None:
        """Change the policy of the picker."""
        path = f"{POLICIES}/envoyextensionpolicies/gorgo-epp"
        (processor,) = (await self.client.call("GET", path))["spec"]["extProc"]
        merge = {"Content-Type": "application/merge-patch+json"}
        await self.client.call("PATCH", path, {"spec": {"extProc": [processor | fields]}}, merge)

    async def written(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The pool's cluster and the filter, as Envoy has them."""
        async with aiohttp.ClientSession(ADMIN_PAGE) as http, http.get("/config_dump") as answer:
            pages = {
                page["@type"].rpartition(".")[2]: page
                for page in (await answer.json(content_type=None))["configs"]
            }
        clusters = [each["cluster"] for each in pages["ClustersConfigDump"]["dynamic_active_clusters"]]
        listeners = [
            each["active_state"]["listener"] for each in pages["ListenersConfigDump"]["dynamic_listeners"]
        ]
        chain = next(each["default_filter_chain"] for each in listeners if "default_filter_chain" in each)
        pool = next(each for each in clusters if each["name"].startswith("httproute/"))
        return pool, chain["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]

    async def envoy(self) -> list[str]:
        """Envoy's arguments, with a kubelet's mounts and variables in them."""
        deployments = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"
        found: list[Any] = []

        async def made() -> bool:
            found[:] = (await self.client.call("GET", deployments))["items"]
            return bool(found)

        await until(made)
        name = found[0]["metadata"]["name"]
        for folder in ("certs", "sds"):
            (self.folder / folder).mkdir()
        await self.files("secrets/envoy", self.folder / "certs")
        await self.files(f"configmaps/{name}", self.folder / "sds", certs=str(self.folder / "certs"))
        container = next(
            each for each in found[0]["spec"]["template"]["spec"]["containers"] if each["name"] == "envoy"
        )
        kubelet = {"$(ENVOY_POD_NAME)": name, "$(ENVOY_SERVICE_ZONE)": "zone", '"/sds/': f'"{self.folder}/sds/',
                   "path: /sds/": f"path: {self.folder}/sds/", "cluster.local.": "cluster.local"}  # fmt: skip
        words = "\0".join(container["args"])
        for old, new in kubelet.items():
            words = words.replace(old, new)
        return words.split("\0")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    home = os.environ.get("ENVOY_GATEWAY")
    if not home or not binaries():
        pytest.skip("no Envoy Gateway, or no API server: run `make test-gateway`")
    folder = tmp_path_factory.mktemp("envoy-gateway")
    async with AsyncExitStack() as stack:
        server = RealKube(folder / "kube")
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await asyncio.to_thread(server.start)
        url = f"https://127.0.0.1:{server.port}"
        client = KubeClient(url, ADMIN)
        stack.push_async_callback(client.close)
        config = kubeconfig(folder / "kubeconfig", url, token=ADMIN)
        os.environ["KUBECONFIG"] = str(config)
        replicas = [
            await stack.enter_async_context(SimReplica(quick_config(name, host=name, port=8000)))
            for name in REPLICAS
        ]
        http = await stack.enter_async_context(aiohttp.ClientSession("http://127.0.0.1:8888"))
        pool = {"kubernetes": {"service": "vllm-llama", "namespace": NAMESPACE, "kubeconfig": str(config)}}
        listen = {**CONFIG["listen"], "grpc": f"{PICKER}:9002", "tls": {"self_signed": True}}
        picker = PickerProcess(
            folder, pool=pool, listen=listen, policy={"fallbacks": 0}, protocol={"conformance": True}
        )
        made = Cluster(client, folder, picker, replicas, http)
        for name in (SYSTEM, NAMESPACE):
            await made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for path in sorted((Path(home) / "crds").iterdir()):
            await made.create(*(crd for crd in yaml.safe_load_all(path.read_text()) if crd))
        program = (f"{home}/envoy-gateway",)
        async with Child("certgen", ["certgen", "--disable-topology-injector"], folder, program) as certgen:
            assert await certgen.wait() == 0, certgen.log()
        await made.files("secrets/envoy-gateway", Path("/certs"))
        (folder / "envoy-gateway.yaml").write_text(yaml.safe_dump(SETTINGS))
        words = ["server", "--config-path", str(folder / "envoy-gateway.yaml")]
        await stack.enter_async_context(Child("envoy-gateway", words, folder, program))
        await made.create(*service(), *gateway(), *yaml.safe_load_all(MANIFEST.read_text()))
        stack.push_async_callback(picker.stop)
        await picker.start()
        envoy = await made.envoy()
        await stack.enter_async_context(Child("envoy", envoy, folder, (str(find_envoy()),)))
        await until(made.decides)
        yield made


async def test_it_writes_what_the_other_tests_take_for_its_own(cluster: Cluster) -> None:
    wanted = shapes.envoy_gateway(EnvoySettings(endpoints=(), eds_path="/eds.json"))
    pool, processor = await cluster.written()
    shape = shapes.tree(wanted.pool)
    assert {key: value for key, value in pool.items() if key in shape} | PLACES == shape | PLACES
    shape = {"@type": processor["@type"], **shapes.tree(wanted.processor)}
    # The manifest asks for none.
    del shape["metadata_options"]
    processor["grpc_service"]["envoy_grpc"] = shape["grpc_service"]["envoy_grpc"]
    assert processor == shape


@pytest.mark.parametrize("address", REPLICAS)
async def test_requests_go_where_the_picker_says(cluster: Cluster, address: str) -> None:
    other = next(each for each in REPLICAS if each != address)
    for _ in range(4):
        told = {"test-epp-endpoint-selection": f"{address}:8000", DESTINATION: f"{other}:8000"}
        assert await cluster.ask(**told) == (200, address)


async def test_it_knows_no_inference_pool(cluster: Cluster) -> None:
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "gorgo-epp"}
    spec = {
        "parentRefs": [{"name": "inference-gateway"}],
        "hostnames": ["pool.test"],
        "rules": [{"backendRefs": [pool]}],
    }
    route = {
        "apiVersion": GATEWAY,
        "kind": "HTTPRoute",
        "metadata": {"name": "pool", "namespace": NAMESPACE},
        "spec": spec,
    }
    await cluster.create(route)

    async def refused() -> bool:
        parents = (
            (await cluster.client.call("GET", path_of(route, named=True)))
            .get("status", {})
            .get("parents", [])
        )
        return any(each["reason"] == "InvalidKind" for parent in parents for each in parent["conditions"])

    await until(refused)


async def test_full_duplex_may_not_fail_open(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="FailOpen must be false"):
        await cluster.change(failOpen=True)


async def test_without_a_picker(cluster: Cluster) -> None:
    """Full duplex fails closed; a buffered policy may fail open, and then a client's header is why it is removed."""
    first, _ = REPLICAS
    client = {DESTINATION: f"{first}:8000"}
    await cluster.picker.kill()
    assert await cluster.ask(**client) == (500, "")
    await cluster.change(failOpen=True, processingMode={"request": {"body": "Buffered"}})
    await until(lambda: cluster.balances(client))
    await cluster.client.call("DELETE", f"{POLICIES}/clienttrafficpolicies/gorgo-epp")
    await until(lambda: cluster.obeys(client, first))
    await cluster.picker.start()
    await until(cluster.decides)
