"""Records are the decisions: number for number, so that they run again to the same end; and documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.apis.usage import NO_USAGE
from epp.errors import EppError
from epp.policies.registry import POLICIES, create
from epp.records.files import read_records
from epp.records.schema import decision_of, join
from epp.records.verdicts import AnswerVerdict
from epp.records.verify import verify
from epp.schedule.decision import Outcome, QueueWait, rerun, to_record
from epp.types import NUMERIC_COLUMNS, Endpoint, Role
from tests.kit.fleets import fleet_view, with_unknown
from tests.kit.records import decided, record_all, recorder_to, through_json

DOCS = Path(__file__).parent.parent.parent / "docs" / "records.md"
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=3, max_size=3), st.lists(FINITE, min_size=3, max_size=3))
def test_every_double_survives(rtt_ms: list[float], costs: list[float]) -> None:
    decision = decided(1)[0][0]
    ranking = replace(decision.ranking, costs=np.array(costs))
    snapshot = with_unknown(fleet_view(3, rtt_ms=rtt_ms), "engine_waiting", 1)
    again = decision_of(through_json(replace(decision, ranking=ranking, snapshot=snapshot)))
    assert again.ranking.costs.tobytes() == ranking.costs.tobytes()
    for name in NUMERIC_COLUMNS:
        assert getattr(again.snapshot, name).tobytes() == getattr(snapshot, name).tobytes()
    assert {name: mask.tolist() for name, mask in again.snapshot.unknown.items()} == {
        "engine_waiting": [False, True, False]
    }


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("settings", [{}, {"tolerance": 0.5, "seed": 7}, {"fallbacks": 0}])
def test_every_policy_runs_again_to_the_same_choice(policy: str, settings: dict[str, Any]) -> None:
    for decision, _ in decided(40, policy, **settings):
        again = rerun(decision_of(through_json(decision)), create(policy))
        assert through_json(again)["request"] == through_json(decision)["request"]
        for name in ("id", "chosen", "fallbacks", "tied", "slow_start_excluded", "weights_version"):
            assert getattr(again, name) == getattr(decision, name), name
        assert np.array_equal(again.ranking.costs, decision.ranking.costs)
        assert np.array_equal(again.probabilities(), decision.probabilities())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chosen": 2}, "chose"),
        ({"fallbacks": [2, 1]}, "fallbacks"),
        ({"tied": 99}, "tied"),
        ({"costs": [0.0, 0.0, 0.0]}, "costs differ"),
        ({"probabilities": [0.0, 1.0, 0.0]}, "probabilities differ"),
        ({"weights": {"rtt_weight": 9.0, "queue_weight": 0.5, "prefill_weight": 1.0}}, "differ"),
        ({"policy": "no-such-policy"}, "unknown policy"),
        ({"signals": {}}, "cannot be read"),
    ],
)
def test_a_record_that_was_changed_is_found_out(change: dict[str, Any], words: str) -> None:
    decision = next(decision for decision, _ in decided(20) if decision.chosen == 0)
    verdict = verify([{**through_json(decision), **change}, through_json(decision)])
    assert verdict.identical == 1
    (difference,) = verdict.differences
    assert words in difference


def test_requests_without_an_outcome_come_last_and_orphans_not_at_all() -> None:
    decisions = [to_record(decision) for decision, _ in decided(4)]
    ends = [{"kind": "outcome", "id": decisions[index]["id"]} for index in (2, 0)]
    records = [{"kind": "file"}, {"kind": "outcome", "id": "rotated away"}, *decisions, *ends]
    joined = list(join(records))
    assert [request.decision["id"] for request in joined] == ["id-2", "id-0", "id-1", "id-3"]
    assert [request.outcome is None for request in joined] == [False, False, True, True]


def test_every_key_is_documented(tmp_path: Path) -> None:
    params = {"scorers": {"lru": {"type": "no-hit-lru-scorer"}}, "scorer_weights": {"lru": 1.0}}
    forwarded = {"origin_region": "us", "origin_decision": "us-7", "sequences": 2, "last_turn": True}
    decision, prompt = decided(1, prefix="forwarded")[0]
    wait = QueueWait(1.8, "a:1", "its patience was over")
    told = replace(decision.snapshot, cached_sources=np.array([1, 2, 0], np.int8))
    decision = replace(decision, request=replace(decision.request, **forwarded), snapshot=told, wait=wait)
    read = decision_of(through_json(decision)).snapshot.cached_sources
    assert read is not None
    assert read.tolist() == [1, 2, 0]
    assert {
        name: getattr(decision_of(through_json(decision)).request, name) for name in forwarded
    } == forwarded
    assert decision_of(through_json(decision)).wait == wait
    assert verify([through_json(decision)]).identical == 1
    parted = [Endpoint(f"{role}:1", roles=frozenset({role})) for role in (Role.PREFILL, Role.DECODE)]
    record_all(
        tmp_path,
        [
            (decision, prompt),
            *decided(2),
            *decided(1, "llm-d-profile", prefix="llm-d", params=params),
            *decided(1, "gorgo-ms", prefix="parted", pool=parted),
        ],
    )
    with recorder_to(tmp_path) as (recorder, _):
        recorder.record(AnswerVerdict(id="id-0", correct=True), 1.0)
        ended = Outcome("id-0", "a:1", "completed", 200, 1.0, 2.0, NO_USAGE, answers=2)
        recorder.record(replace(ended, workers={Role.PREFILL: "b:1"}), 1.0)
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    keys = set()
    for path in tmp_path.iterdir():
        for text in path.read_text().splitlines():
            record = json.loads(text)
            kind = record["kind"]
            for name, value in record.items():
                keys.add(f"{kind}.{name}")
                if name in ("request", "signals", "wait"):
                    keys |= {f"{kind}.{name}.{inner}" for inner in value}
    assert keys == documented


@given(st.lists(st.sampled_from(["llama-a", "llama-b"]), min_size=3, max_size=3))
def test_names_that_engines_give_the_model_survive_and_bind_the_fallbacks_again(served: list[str]) -> None:
    decision = decided(1)[0][0]
    snapshot, (leg,) = replace(decision.snapshot, models=tuple(served)), decision.legs
    decision = replace(decision, snapshot=snapshot, legs=(replace(leg, fallbacks=(0, 1, 2)),))
    record = through_json(decision)
    assert record["served_model"] == served[decision.chosen]
    again = rerun(decision_of(record), create(decision.policy))
    assert again.snapshot.models == tuple(served)
    assert all(served[row] == served[again.chosen] for row in again.fallbacks)


def test_records_of_a_version_to_come_are_refused(tmp_path: Path) -> None:
    record_all(tmp_path, decided(1))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace('"schema":2', '"schema":3'))
    with pytest.raises(EppError, match="schema 3; this version reads 2"):
        list(read_records(tmp_path))
