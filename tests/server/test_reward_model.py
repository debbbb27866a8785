"""The model file in a picker: good ones decide at once, bad ones change nothing, old and foreign ones go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.errors import ConfigError
from epp.feeds.learned import MODEL_MAX_AGE_S
from epp.policies.lodestar import FALLBACKS
from epp.records.model_files import dump_reward_model
from epp.schedule.decision import to_record
from epp.types import Endpoint
from tests.kit.apps import app_of, ask, rewrite
from tests.kit.clock import ManualClock
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from pathlib import Path

    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision
    from epp.server.app import App

NOW_S = 1_800_000_000.0
POOL = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
#: Likes the endpoint that is farthest away, which no heuristic of ours does.
FAR = linear_model({"rtt_ms": -1.0})


def app(folder: Path, clock: ManualClock | None = None, **sections: Any) -> App:
    policy = {"name": "lodestar", "params": {"explore": 0.0}, "model_file": "reward.json"}
    clock = clock or ManualClock(wall_s=NOW_S)
    made = app_of(folder, clock, **{"policy": policy, "pool": {"warmup_s": 0}, **sections})
    made.scheduler.set_pool([Endpoint(address) for address in POOL], 0.0)
    for address, rtt_ms in zip(POOL, (10.0, 50.0, 200.0), strict=True):
        made.scheduler.datastore.assume_rtt(address, rtt_ms)
    return made


def decision_of(made: App) -> Decision:
    return ask(made).decision


def write(made: App, folder: Path, content: RewardModel | bytes) -> None:
    text = content if isinstance(content, bytes) else dump_reward_model(content)
    rewrite(made, folder / "reward.json", text)


def reason(decision: Decision) -> str:
    return FALLBACKS[int(decision.ranking.terms["fallback"][decision.chosen])]


def metrics(made: App) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families("".join(made.metrics.pieces()))
        for sample in family.samples
    }


def check(made: App) -> None:
    assert made._learning is not None
    assert made._learning.feed is not None
    made._learning.feed.check()


def test_a_good_file_decides_from_the_next_request_on_and_is_named_in_it(tmp_path: Path) -> None:
    made = app(tmp_path)
    before = decision_of(made)
    assert (reason(before), before.params) == ("no-model", {"explore": 0.0})
    write(made, tmp_path, FAR)
    after = decision_of(made)
    assert (reason(after), after.endpoint) == ("", POOL[2])
    assert after.params == {"explore": 0.0, "model": FAR.version}
    assert to_record(after)["params"]["model"] == FAR.version
    found = metrics(made)
    assert ("epp_reward_model_age_seconds", FAR.version, "") in found
    assert found["epp_learned_decisions_total", "no-model"] == 1.0
    assert found["epp_learned_decisions_total", "model"] == 1.0
    write(made, tmp_path, linear_model({"rtt_ms": 1.0}))
    assert decision_of(made).endpoint == POOL[0]


@pytest.mark.parametrize("content", [b"", b"{", dump_reward_model(FAR)[:-200], b'{"format": 9}'])
def test_a_bad_file_changes_nothing_and_says_so(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made = app(tmp_path)
    write(made, tmp_path, FAR)
    assert metrics(made)["epp_file_ok", "model"] == 1.0
    with caplog.at_level(logging.ERROR):
        write(made, tmp_path, content)
    assert str(tmp_path / "reward.json") in caplog.text
    assert "last good model stays" in caplog.text
    assert decision_of(made).params["model"] == FAR.version
    assert metrics(made)["epp_file_ok", "model"] == 0.0
    write(made, tmp_path, FAR)
    assert metrics(made)["epp_file_ok", "model"] == 1.0


def test_a_model_that_its_writer_removed_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = app(tmp_path)
    write(made, tmp_path, FAR)
    with caplog.at_level(logging.WARNING):
        rewrite(made, tmp_path / "reward.json", None)
    assert reason(decision_of(made)) == "no-model"
    assert (("epp_file_ok", "model") in metrics(made), "is gone" in caplog.text) == (False, False)


def test_a_model_that_is_too_old_is_withdrawn_until_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock(wall_s=NOW_S)
    made = app(tmp_path, clock)
    write(made, tmp_path, FAR)
    clock.advance(MODEL_MAX_AGE_S - 1.0)
    check(made)
    assert reason(decision_of(made)) == ""
    clock.advance(2.0)
    check(made)
    stale = decision_of(made)
    assert (reason(stale), stale.params["withdrawn"]) == ("stale", "stale")
    assert metrics(made)["epp_reward_model_age_seconds", FAR.version, "stale"] == MODEL_MAX_AGE_S + 1.0
    write(made, tmp_path, linear_model({"rtt_ms": -1.0}, trained_at_s=NOW_S + MODEL_MAX_AGE_S))
    fresh = decision_of(made)
    assert (reason(fresh), "withdrawn" in fresh.params) == ("", False)


def test_a_model_file_that_nobody_reads_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no policy uses a model") as caught:
        app(tmp_path, policy={"name": "gorgo", "model_file": "reward.json"})
    assert caught.value.key == "policy.model_file"
    app(tmp_path, policy={"name": "gorgo", "model_file": "reward.json"}, shadow=["lodestar"])
