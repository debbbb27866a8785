"""A changed `epp.yaml`, and a running picker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.kit.picker import PickerProcess

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_can_change_does_and_the_rest_waits_for_a_restart(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '192.0.2.1:8000'}]")
    picker = PickerProcess(tmp_path, policy={"name": "gorgo"}, options=("--log-format", "json"))
    await picker.start()
    try:
        file = tmp_path / "epp.yaml"
        config = json.loads(file.read_text())
        config["policy"] |= {"weights": {"rtt_weight": 3.0}, "tolerance": 0.25}
        config["scrape"]["interval_s"] = 7
        file.write_text(json.dumps(config))
        await picker.until_metric(
            "epp_weight", lambda value: value == 3.0, name="rtt_weight", arm="incumbent"
        )
        file.write_text(json.dumps({**config, "policy": {"name": "gorgo", "weights": {"rt": 1.0}}}))
        await picker.until_metric("epp_file_ok", lambda value: value == 0.0, file="config")
        assert await picker.metric("epp_weight", name="rtt_weight", arm="incumbent") == 3.0
        file.write_text(json.dumps(config))
        await picker.until_metric("epp_file_ok", lambda value: value == 1.0, file="config")
    finally:
        await picker.stop()
    lines = [json.loads(line) for line in picker.log().splitlines()]
    about = [
        (line["level"], line["msg"].removeprefix(f"{file}: ")) for line in lines if str(file) in line["msg"]
    ]
    known = "known: prefill_weight, queue_weight, rtt_weight"
    assert about == [
        ("info", "policy.weights is {'rtt_weight': 3.0} from now on"),
        ("info", "policy.tolerance is 0.25 from now on"),
        ("warn", "scrape.interval_s has changed, which takes effect at a restart"),
        ("error", f"policy.weights.rt: unknown weight ({known}); the last good configuration stays in force"),
    ]
