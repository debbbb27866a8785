"""What the doctor finds in an Envoy's dump: each mistake by itself, laid over a dump in which nothing is wrong."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.config.federation import Federation
from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.config.schema import Config, Nats, Prefix, ProgramsSection, QueueSection
from epp.ops.doctor.checks import examine
from epp.ops.doctor.context import Context, Severity
from epp.ops.doctor.envoy_dump import Envoy
from tests.kit.doctor import examined, findings, said

if TYPE_CHECKING:
    from epp.ops.doctor.context import Finding

_PREFIX = "type.googleapis.com/x."


def typed(kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"@type": _PREFIX + kind, **fields}


def cluster(name: str, **fields: Any) -> dict[str, Any]:
    return typed(
        "Cluster",
        name=name,
        type="STATIC",
        circuit_breakers={"thresholds": [{"max_requests": 10_000, "max_connections": 30_000}]},
        load_assignment={"endpoints": [{"lb_endpoints": []}]},
        **fields,
    )


def sound() -> dict[str, Any]:
    """The parts of a dump that are looked at, as JSON of an Envoy spells them: no defaults."""
    ext_proc = typed(
        "ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        failure_mode_allow=True,
        message_timeout="0.250s",
        processing_mode={"request_header_mode": "SEND", "request_body_mode": "BUFFERED"},
        metadata_options={"receiving_namespaces": {"untyped": ["envoy.lb", "epp"]}},
    )
    route = {
        "name": "replicas",
        "request_body_buffer_limit": "33554432",
        "route": {
            "cluster": "replicas",
            "timeout": "0s",
            "retry_policy": {"retry_on": "connect-failure,refused-stream"},
        },
    }
    manager = typed(
        "HttpConnectionManager",
        http_filters=[{"typed_config": ext_proc}, {"typed_config": typed("Lua")}],
        access_log=[
            {
                "typed_config": typed(
                    "HttpGrpcAccessLogConfig",
                    common_config={"grpc_service": {"envoy_grpc": {"cluster_name": "picker"}}},
                )
            }
        ],
        early_header_mutation_extensions=[
            {
                "typed_config": {
                    "mutations": [
                        {"remove_on_match": {"key_matcher": {"prefix": "x-gateway-destination-endpoint"}}}
                    ]
                }
            }
        ],
        route_config={"name": "requests", "virtual_hosts": [{"routes": [route]}]},
    )
    override = typed("OverrideHost", override_host_sources=[{"metadata": {"key": "envoy.lb"}}])
    replicas = cluster("replicas", load_balancing_policy={"policies": [{"typed_config": override}]})
    return {
        "configs": [
            typed(
                "BootstrapConfigDump",
                bootstrap={"admin": {"address": {"socket_address": {"address": "127.0.0.1"}}}},
            ),
            typed(
                "ClustersConfigDump", static_clusters=[{"cluster": replicas}, {"cluster": cluster("picker")}]
            ),
            typed(
                "ListenersConfigDump",
                static_listeners=[
                    {"listener": {"filter_chains": [{"filters": [{"typed_config": manager}]}]}}
                ],
            ),
        ]
    }


class Dump:
    """A sound dump and handles on the parts that tests spoil."""

    def __init__(self) -> None:
        self.tree = sound()
        _, clusters, listeners = self.tree["configs"]
        self.replicas, self.picker = (one["cluster"] for one in clusters["static_clusters"])
        listener = listeners["static_listeners"][0]["listener"]
        self.manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        self.ext_proc = self.manager["http_filters"][0]["typed_config"]
        self.mode = self.ext_proc["processing_mode"]
        self.route = self.manager["route_config"]["virtual_hosts"][0]["routes"][0]
        self.source = self.replicas["load_balancing_policy"]["policies"][0]["typed_config"]
        self.admin = self.tree["configs"][0]["bootstrap"]["admin"]["address"]["socket_address"]

    def found(self, statuses: dict[str, Any] | None = None, **fields: Any) -> list[Finding]:
        fields.setdefault("config", config())
        envoy = Envoy(copy.deepcopy(self.tree), statuses)
        return findings(examine(Context(dump=envoy, **fields)).found)


def config(fallbacks: int = 0, **sections: Any) -> Config:
    policy = msgspec.structs.replace(Config().policy, fallbacks=fallbacks)
    return Config(policy=policy, **sections)


def no_ext_proc(dump: Dump) -> None:
    del dump.manager["http_filters"][0]


def no_removal(dump: Dump) -> None:
    dump.manager["early_header_mutation_extensions"] = []
    dump.source["override_host_sources"] = [{"header": "x-gateway-destination-endpoint"}]


def original_dst_open(dump: Dump) -> None:
    dump.manager["early_header_mutation_extensions"] = []
    dump.replicas["type"] = "ORIGINAL_DST"
    dump.replicas["original_dst_lb_config"] = {"metadata_key": {"key": "envoy.lb"}}


MISTAKES: list[tuple[Any, str, Severity]] = [
    (no_ext_proc, "no ext_proc filter|no listener", Severity.ERROR),
    (lambda d: d.mode.pop("request_body_mode"), "request bodies are not sent", Severity.ERROR),
    (lambda d: d.mode.update(request_header_mode="SKIP"), "headers are not sent", Severity.ERROR),
    (lambda d: d.mode.update(response_body_mode="STREAMED"), "every piece of every answer", Severity.ADVICE),
    (lambda d: d.ext_proc.pop("failure_mode_allow"), "requests fail when the picker does", Severity.WARNING),
    (original_dst_open, "clients' destination headers stay", Severity.ERROR),
    (lambda d: d.ext_proc.update(message_timeout="1000s"), "hold each request for 1000 s", Severity.WARNING),
    (lambda d: d.ext_proc.update(message_timeout="0.020s"), "message_timeout is 20 ms", Severity.WARNING),
    (lambda d: d.ext_proc.pop("metadata_options"), "decision id is not taken over", Severity.WARNING),
    (lambda d: d.ext_proc.pop("metadata_options"), "metadata that the picker may not set", Severity.ERROR),
    (lambda d: d.manager.pop("access_log"), "no gRPC access log", Severity.WARNING),
    (lambda d: d.manager["http_filters"].pop(1), "first token (no Lua", Severity.WARNING),
    (lambda d: d.replicas.pop("load_balancing_policy"), "balances by itself", Severity.ERROR),
    (no_removal, "header that clients can send", Severity.ERROR),
    (lambda d: d.replicas.pop("circuit_breakers"), "cluster replicas takes at most 1024", Severity.WARNING),
    (lambda d: d.picker.pop("circuit_breakers"), "cluster picker takes at most 1024", Severity.WARNING),
    (lambda d: d.route["route"].pop("timeout"), "ends a request after 15 s", Severity.ERROR),
    (lambda d: d.route["route"].pop("retry_policy"), "does not retry", Severity.WARNING),
    (lambda d: d.route["route"].update(retry_policy={"retry_on": "5xx"}), "retries answers", Severity.ADVICE),
    (lambda d: d.route.pop("request_body_buffer_limit"), "no limit on buffered", Severity.ADVICE),
    (lambda d: d.admin.update(address="0.0.0.0"), "admin interface listens on 0.0.0.0", Severity.WARNING),
]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert Dump().found() == []


@pytest.mark.parametrize(("spoil", "words", "severity"), MISTAKES, ids=[words for _, words, _ in MISTAKES])
def test_each_mistake_is_found(spoil: Any, words: str, severity: Severity) -> None:
    dump = Dump()
    spoil(dump)
    found = [finding for finding in dump.found() if any(word in finding.what for word in words.split("|"))]
    assert [finding.severity for finding in found] == [severity]
    assert found[0].why
    assert found[0].fix


def test_a_list_of_endpoints_for_a_cluster_that_reads_one_address_is_found() -> None:
    dump = Dump()
    dump.replicas["type"] = "ORIGINAL_DST"
    [finding] = dump.found(config=config(fallbacks=2))
    assert finding.severity is Severity.ERROR
    assert "2 fallbacks" in finding.what
    assert "policy.fallbacks: 0" in finding.fix
    assert dump.found() == []


def test_a_route_that_ends_before_a_held_turn_may_is_found() -> None:
    dump, queue = Dump(), QueueSection(enabled=True, programs=ProgramsSection(enabled=True))
    dump.route["route"]["timeout"] = "300s"
    assert dump.found() == []
    [finding] = dump.found(config=config(queue=queue))
    assert finding.severity is Severity.ERROR
    assert "may wait 540 s" in finding.why


def holding(*hosts: tuple[str, int]) -> dict[str, Any]:
    sockets = [{"address": {"socket_address": {"address": host, "port_value": port}}} for host, port in hosts]
    return {"cluster_statuses": [{"name": "replicas", "host_statuses": sockets}]}


POOL = {name: EndpointSpec(address=name) for name in ("10.0.0.1:8000", "10.0.0.2:8000", "name.example:8000")}


def test_endpoints_that_envoy_does_not_hold_are_named() -> None:
    both = ("10.0.0.1", 8000), ("10.0.0.2", 8000)
    assert Dump().found(holding(*both), specs=POOL) == []
    [finding] = Dump().found(holding(both[0]), specs=POOL)
    assert "does not hold 10.0.0.2:8000 of the endpoints file" in finding.what


def test_the_envoy_of_a_region_need_not_hold_the_addresses_of_peer_regions() -> None:
    peers = Relays(
        regions={"us": "10.1.0.1:8443", "eu": "10.2.0.1:8443"}, ca_file="c", cert_file="c", key_file="k"
    )
    own = Config(
        relays=peers, federation=Federation(region="us", key_file="hops"), prefix=Prefix(secret_file="s"),
        nats=Nats(url="nats://10.1.0.9"), policy=config().policy,
    )  # fmt: skip
    both = ("10.0.0.1", 8000), ("10.0.0.2", 8000)
    assert Dump().found(holding(*both), specs=POOL, config=own) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"configs": null}', '{"configs": [1]}'])
async def test_another_server_s_answer_is_not_taken_for_an_envoy_s(text: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    site = web.Application()
    site.router.add_get("/{path}", answer)
    async with TestServer(site) as server:
        admin = str(server.make_url("")).rstrip("/")
        report = await examined(Config(), {}, admin=admin)
    assert said(report) == [f"no configuration from {admin}/config_dump: status 200"]
