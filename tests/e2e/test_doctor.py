"""The doctor on real deployments: healthy ones, in which it finds nothing, and ones with a fault that it names."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from epp.config.load import parse_config
from epp.config.pool import EndpointSpec, parse_pool
from tests.kit.doctor import examined, noted, said
from tests.kit.picker import CONFIG, Serving
from tests.kit.records import ended
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.doctor import Found

SHARED = "what everybody says first, in the same words, at some length. " * 120


async def doctor(serving: Serving) -> Found:
    return await examined(
        parse_config(json.dumps(CONFIG), "epp.yaml"),
        parse_pool((serving.folder / "endpoints.yaml").read_bytes(), "endpoints.yaml"),
        picker_url=f"http://{serving.picker.http}",
        admin=serving.envoy.admin_url,
        records=serving.folder / "records",
    )


async def traffic(serving: Serving, count: int) -> None:
    async def ask(number: int) -> None:
        status, _ = await serving.chat(f"{SHARED} question {number}", stream=bool(number % 2))
        assert status == 200

    for start in range(0, count, 20):
        await asyncio.gather(*(ask(number) for number in range(start, start + 20)))
    await serving.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)
    await until(lambda: ended(serving.folder / "records") == count, 10)


#: Nobody tells the picker of first tokens unless Envoy's calls are joined to it.
UNSEEN = "the first token of none was seen"


async def test_nothing_is_found_on_a_healthy_deployment(tmp_path: Path) -> None:
    patient = {**CONFIG["probe"], "timeout_s": 10.0}  # a busy machine answers late, which is no fault of it
    async with Serving(tmp_path, probe=patient, envoy={"message_timeout_ms": 2000}) as serving:
        await traffic(serving, 120)
        report = await doctor(serving)
        seen = await serving.picker.metric("llm_d_epp_request_ttft_seconds_count", streaming="true")
        # What the kernel of this machine does, should it be too busy to seem near, is not the deployment's.
        told = said(report, "picker", "engine", "envoy", "clock", "traffic")
        assert [what for what in told if UNSEEN not in what] == []
        assert any(UNSEEN in what for what in told) is (seen == 0), "said when it is so, and only then"
        notes = " ".join(noted(report))
        for replica in serving.replicas:
            assert f"{replica.address}: metrics of" in notes
        assert "files in force: endpoints" in notes
        assert "holds all endpoints" in notes


async def test_faults_of_a_deployment_are_named(tmp_path: Path) -> None:
    async with Serving(
        tmp_path, envoy={"observe": False, "retries": 0, "message_timeout_ms": 5000, "eds_path": ""}
    ) as serving:
        (tmp_path / "weights.yaml").write_text("weights: {network_weight: ")
        await serving.picker.until_metric("epp_file_ok", lambda value: value == 0, file="weights")
        await serving.replicas[0].kill()
        serving.write_pool([*serving.specs(), EndpointSpec(address="127.0.0.1:9", kv_capacity_tokens=1000)])
        for address in (serving.replicas[0].address, "127.0.0.1:9"):
            await serving.picker.until_metric(
                "epp_endpoint_unavailable", lambda value: value == 1, reason="ejected", endpoint=address
            )
        whats = " | ".join(said(await doctor(serving)))
        for words in (
            "the weights file is gone or cannot be used",
            "ejected: ",
            f"no metrics from {serving.replicas[0].address}",
            "does not hold 127.0.0.1:9",
            "does not retry",
            "hold each request for 5 s",
            "no gRPC access log",
            "no Lua filter",
        ):
            assert words in whats
