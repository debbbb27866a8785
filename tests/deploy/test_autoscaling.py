"""What autoscalers ask Prometheus, asked of a real one about a picker whose queue holds requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from epp.config.pool import EndpointSpec, dump_pool
from epp.extproc.modes import BodyMode
from epp.feeds.files import replace_file
from tests.kit.conversation import request_body, request_headers, with_modes
from tests.kit.picker import PickerProcess
from tests.kit.prometheus import Prometheus, require
from tests.kit.rawpeer import RawPeer
from tests.kit.replicas import chat_body
from tests.kit.waiting import until

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s" / "autoscaling"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def queries() -> dict[str, str]:
    """What KEDA and prometheus-adapter ask, of the pool of a picker that is in no cluster."""
    found = {each["name"]: each["metadata"]["query"] for each in load("keda")["spec"]["triggers"]}
    (metric,), (rule,) = load("hpa")["spec"]["metrics"], load("prometheus-adapter")["rules"]["external"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    labels = metric["external"]["metric"]["selector"]["matchLabels"].items()
    matchers = ",".join(f'{name}="{value}"' for name, value in labels)
    query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"])
    found["hpa"] = query.replace("<<.LabelMatchers>>", matchers)
    return {name: query.replace("llama", "default") for name, query in found.items()}


async def test_autoscalers_see_what_waits_and_what_waits_for_the_first_engine(tmp_path: Path) -> None:
    require("prometheus")
    pool = tmp_path / "endpoints.yaml"
    pool.write_bytes(dump_pool([]))
    picker = PickerProcess(tmp_path, probe={"interval_s": 0}, queue={"enabled": True, "ttl_s": 600})
    await picker.start()
    peer = await RawPeer.connect(picker.grpc)

    def ask(number: int) -> None:
        body = json.dumps(chat_body(f"{number} " + "a word or two " * 5_000)).encode()
        peer.open(number)
        peer.say(number, with_modes(request_headers(), BodyMode.BUFFERED), request_body(body, end=True))

    try:
        async with Prometheus(tmp_path / "prometheus", picker.http, []) as prometheus:

            async def told(*, waiting: bool, from_zero: bool, running: bool) -> None:
                wanted = {"waiting": waiting, "hpa": waiting, "from-zero": from_zero, "running": running}

                async def met() -> bool:
                    found = {name: await prometheus.query(query) for name, query in queries().items()}
                    values = {name: [float(each["value"][1]) for each in its] for name, its in found.items()}
                    return {name: [value > 0 for value in its] for name, its in values.items()} == {
                        name: [each] for name, each in wanted.items()
                    }

                await until(met)

            await told(waiting=False, from_zero=False, running=False)
            for at in range(8):
                ask(2 * at + 1)
            await told(waiting=True, from_zero=True, running=False)
            replace_file(pool, dump_pool([EndpointSpec(address="10.0.0.1:8000")]))
            await told(waiting=True, from_zero=False, running=True)
            for at in range(8):
                peer.reset(2 * at + 1)
            await told(waiting=False, from_zero=False, running=False)
    finally:
        await peer.close()
        await picker.stop()
