"""What the doctor reads out of a picker's metrics page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.cli import main
from epp.config.pool import EndpointSpec
from epp.config.schema import Config, KvEvents, Nats, Prefix
from epp.metrics.table import TABLE
from epp.ops.doctor.checks import examine
from epp.ops.doctor.command import load
from epp.ops.doctor.context import Context, Page
from tests.kit.doctor import examined, findings, noted, said

if TYPE_CHECKING:
    from pathlib import Path

SPECS = {
    "a:1": EndpointSpec(address="a:1", region="east", rtt_ms=20.0),
    "b:1": EndpointSpec(address="b:1", region="east"),
    "c:1": EndpointSpec(address="c:1", region="far"),
}


def page(**changes: Any) -> str:
    """A page in which all is well, but for the series given; None takes a series away."""
    series: dict[str, float | None] = {
        'epp_file_ok{file="weights"}': 1,
        'epp_weight{name="rtt_weight",source="default",arm="incumbent"}': 0.276,
        "epp_requests_in_flight": 0,
        'epp_decisions_total{policy="gorgo",basis="policy"}': 1000,
        'llm_d_epp_request_ttft_seconds_count{model_name="m",streaming="true"}': 900,
        'epp_usage_total{known="cached_tokens"}': 500,
        'epp_usage_total{known="nothing"}': 500,
        'epp_engine_rate{engine_class="l40s",state="measured"}': 1,
        "epp_compressed_answers_total": 10,
        "epp_response_sampling_share": 1,
        "epp_cluster_connected": 1,
        "epp_cluster_peers": 2,
        'epp_cluster_messages_total{result="sent"}': 90,
        'epp_cache_tokens_total{kind="prompt"}': 1000,
        'epp_cache_tokens_total{kind="expected"}': 700,
        'epp_cache_tokens_total{kind="reported"}': 650,
    }
    for address, rtt_s in (("a:1", 0.02), ("b:1", 0.022), ("c:1", 0.2)):
        series[f'epp_endpoint_rtt_seconds{{endpoint="{address}"}}'] = rtt_s
        series[f'epp_endpoint_unavailable{{endpoint="{address}",reason="ejected"}}'] = 0
        series[f'epp_endpoint_hit_ratio{{endpoint="{address}"}}'] = 0.9
        series[f'epp_endpoint_slowness{{endpoint="{address}"}}'] = 1
        series[f'epp_endpoint_engine_age_seconds{{endpoint="{address}"}}'] = 0.4
    series |= {name.replace("'", '"'): value for name, value in changes.items()}
    return "".join(f"{name} {value}\n" for name, value in series.items() if value is not None)


def found(**changes: Any) -> list[str]:
    config = Config(nats=Nats(url="nats://n"), prefix=Prefix(secret_file="s"))
    return said(examine(Context(config=config, specs=SPECS, metrics=Page(page(**changes)))).found)


def test_nothing_is_found_where_all_is_well() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epp_file_ok{file='weights'}": 0}, "the weights file is gone or cannot be used"),
        ({"epp_endpoint_unavailable{endpoint='b:1',reason='ejected'}": 1}, "ejected: b:1"),
        ({"epp_endpoint_unavailable{endpoint='b:1',reason='ejected'}": None}, "does not know b:1"),
        ({"epp_health_panicking": 1}, "ejections are ignored"),
        ({"epp_endpoint_engine_age_seconds{endpoint='c:1'}": 60}, "no fresh metrics of c:1"),
        ({"epp_endpoint_engine_age_seconds{endpoint='c:1'}": None}, "no fresh metrics of c:1"),
        ({"epp_endpoint_rtt_seconds{endpoint='c:1'}": None}, "RTT to c:1 is not known"),
        ({"epp_endpoint_rtt_seconds{endpoint='c:1'}": 2.5}, "RTT to c:1 is 2500 ms"),
        ({"epp_endpoint_rtt_seconds{endpoint='b:1'}": 0.3}, "RTTs to region east go from 20.0 to 300.0"),
        (
            {
                "epp_endpoint_rtt_seconds{endpoint='a:1'}": 0.1,
                "epp_endpoint_rtt_seconds{endpoint='b:1'}": 0.1,
            },
            "stated were 20 ms",
        ),
        ({"epp_records_dropped_total": 3}, "3 records were lost"),
        ({"epp_faults_total{part='recorder'}": 2}, "the thread that writes records failed 2 times"),
        ({"epp_endpoint_hit_ratio{endpoint='b:1'}": 0.2}, "engines had: b:1 20%"),
        (
            {"epp_engine_rate{engine_class='l4',state='at-bound'}": 1},
            "of engine class l4 fits no engine",
        ),
        ({"epp_endpoint_slowness{endpoint='c:1'}": 1.8}, "c:1 1.8 times"),
        ({"epp_compressed_answers_total": 60}, "60 answers were compressed"),
        (
            {"epp_response_sampling_share": 0.2, "epp_response_sampling_total{observe='read'}": 500},
            "20.0% of responses are read, less than configured",
        ),
        ({"epp_faults_total{part='stream'}": 1}, "fault of the picker"),
        (
            {"epp_program_turns_total{how='held'}": 50, "epp_program_turns_total{how='left'}": 9},
            "of 50 turns of agents that were held, callers gave up 9",
        ),
        ({"epp_leases_lost_total{reason='expired'}": 100}, "never ended"),
        ({"epp_cache_tokens_total{kind='reported'}": 100}, "70% of prompts were expected"),
        ({"epp_reports_total{receiver='access-log',result='malformed'}": 2}, "2 not readable"),
        (
            {"llm_d_epp_request_ttft_seconds_count{model_name='m',streaming='true'}": 0},
            "the first token of none",
        ),
        ({"epp_late_reports_total": 500}, "does not know"),
        ({"epp_cluster_connected": 0}, "NATS (nats.url) cannot be reached"),
        (
            {"epp_cluster_messages_total{result='ignored: another policy'}": 7},
            "7 messages of other pickers were ignored: another policy",
        ),
    ],
)
def test_each_fault_is_found(changes: dict[str, Any], words: str) -> None:
    [what] = found(**changes)
    assert words in what


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ("epp_model_tokens_counted{model_name='m',by='estimate'}", "prompts for m cannot be looked up"),
        ("epp_kv_events_believed{endpoint='a:1',problem='lost'}", "KV events of a:1 are not believed: lost"),
        ("epp_kv_events_believed{endpoint='a:1',problem='deaf'}", "KV events of a:1 are not believed: deaf"),
    ],
)
def test_what_keeps_kv_events_from_counting_is_found_where_they_are_read(series: str, words: str) -> None:
    config = Config(
        nats=Nats(url="nats://n"), prefix=Prefix(secret_file="s"), kv_events=KvEvents(enabled=True)
    )
    [what] = said(examine(Context(config=config, specs=SPECS, metrics=Page(page(**{series: 1})))).found)
    assert words in what
    assert found(**{series: 1}) == []


def test_shares_of_a_few_requests_say_nothing() -> None:
    few = {
        "epp_decisions_total{policy='gorgo',basis='policy'}": None,
        'epp_decisions_total{policy="gorgo",basis="policy"}': 10,
        "llm_d_epp_request_ttft_seconds_count{model_name='m',streaming='true'}": 0,
        "epp_leases_lost_total{reason='expired'}": 5,
        "epp_late_reports_total": 5,
    }
    assert found(**few) == []


def test_the_names_that_are_read_are_names_that_pickers_show() -> None:
    shown = {row.name for row in TABLE} | {f"{row.name}_count" for row in TABLE}
    assert {name.partition("{")[0].partition(" ")[0] for name in page().splitlines()} <= shown


def test_a_picker_is_asked_over_tls_where_it_serves_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = {"cert_file": "tls.crt", "key_file": "tls.key"}
    config = {"listen": {"http": "[::]:1", "http_tls": tls}, "pool": {"file": "none.yaml"}}
    (tmp_path / "epp.yaml").write_text(json.dumps(config))
    (tmp_path / "none.yaml").write_text("endpoints: []")
    assert main(["doctor", "--config", str(tmp_path / "epp.yaml")]) == 1
    assert "the picker does not answer at https://[::1]:1: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("no endpoints known", "pool.file"),
        ("dead tasks: watch files", "start it again"),
        ("draining", "after it"),
    ],
)
async def test_what_to_do_follows_from_why_a_picker_is_not_ready(reason: str, fix: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        ready = request.path == "/readyz"
        return web.Response(status=503 if ready else 200, text=f"{reason}\n" if ready else page())

    site = web.Application()
    site.router.add_get("/{path}", answer)
    async with TestServer(site) as server:
        report = await examined(Config(), {}, picker_url=str(server.make_url("")).rstrip("/"))
    [finding] = [one for one in findings(report) if "is not ready" in one.what]
    assert reason in finding.what
    assert fix in finding.fix


async def test_endpoints_of_a_cluster_are_those_that_the_picker_tells(tmp_path: Path) -> None:
    """There is no endpoints file then, and none is asked for."""
    file = tmp_path / "epp.yaml"
    file.write_text("pool: {kubernetes: {pool_name: llama}}\n")
    config, specs = load(file)
    served = page(**{"epp_endpoint_unavailable{endpoint='c:1',reason='ejected'}": 1})

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=served if request.path == "/metrics" else "ok")

    site = web.Application()
    site.router.add_get("/{path}", answer)
    async with TestServer(site) as server:
        report = await examined(config, specs, picker_url=str(server.make_url("")).rstrip("/"))
    told = said(report)
    assert "ejected: c:1" in told
    assert any(what.startswith("no metrics from a:1: ") for what in told)
    assert "3 endpoints from the cluster, as the picker tells them" in noted(report)


async def test_ranks_are_known_by_the_names_that_the_picker_has_for_them(tmp_path: Path) -> None:
    ranks = page().replace('"b:1"', '"c:1@0"').replace('"c:1"', '"c:1@1"')
    specs = {"a:1": EndpointSpec(address="a:1"), "c:1": EndpointSpec(address="c:1", ranks=2)}
    found = examine(Context(config=Config(), specs=specs, metrics=Page(ranks))).found
    assert not [what for what in said(found) if "c:1" in what]
    file = tmp_path / "epp.yaml"
    file.write_text("pool: {kubernetes: {pool_name: llama}}\n")

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=ranks if request.path == "/metrics" else "ok")

    site = web.Application()
    site.router.add_get("/{path}", answer)
    async with TestServer(site) as server:
        told = said(await examined(*load(file), picker_url=str(server.make_url("")).rstrip("/")))
    assert any(what.startswith("no metrics from c:1: ") for what in told)


def test_workers_count_as_one_picker() -> None:
    found = Page(
        "# TYPE a gauge\n"
        'a{worker="0",endpoint="x"} 2\na{worker="1",endpoint="x"} 3\n'
        "# TYPE b_total counter\n"
        'b_total{worker="0"} 2\nb_total{worker="1"} 3\n'
    )
    assert found.by("a", "endpoint") == {"x": 3.0}
    assert found.total("b_total") == 5.0
