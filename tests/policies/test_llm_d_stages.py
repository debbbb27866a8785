"""llm-d's stages: the same deciders and picks as its own handler, and its memory of media.

`fixtures/llm_d_stages.jsonl.xz` was written by a Go program around llm-d/llm-d-router at the commit that its
first line names: configurations loaded by that router's own loader, 5,000 snapshots drawn with a fixed seed,
and what its scheduler scored, null for those that a filter removed, and picked at each stage that it ran.
`fixtures/llm_d_media.jsonl` is what its scorer of media said in 400 steps, and where each medium went.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from epp.errors import NoEndpointError
from epp.llmd.flags import read_flags
from epp.llmd.policies.columns import PluginColumns
from epp.llmd.policies.plugins import Media
from epp.llmd.policies.profile import FILTERED, LlmDProfile
from epp.llmd.policies.scorers import QueueScorer
from epp.llmd.policies.stages import Always, LlmDStages, Stage, Uncached
from epp.llmd.settings import translate
from epp.policies.contract import breaches
from epp.policies.registry import create
from epp.records.schema import decision_of
from epp.schedule.decision import rerun, to_record
from epp.types import PREFILLS, Endpoint, Role, Snapshot
from tests.kit.fleets import fleet_view, request
from tests.kit.records import picker_of

FIXTURES = Path(__file__).with_name("fixtures")
BY_QUEUE = LlmDProfile(scorers={"q": QueueScorer()}, scorer_weights={"q": 1.0})


def policy(decider: Always | Uncached, most: int = 1) -> LlmDStages:
    return LlmDStages({Role.DECODE: Stage(BY_QUEUE), Role.PREFILL: Stage(BY_QUEUE, decider, most)})


def seen(decoding: Snapshot, prefilling: Snapshot, **fields: Any) -> Snapshot:
    extra = {**decoding.extra, PREFILLS: np.ones(len(decoding))}
    return replace(decoding, workers={Role.PREFILL: prefilling}, extra=extra, **fields)


def prefilling(**columns: Any) -> Snapshot:
    return fleet_view(2, names=("p:1", "q:1"), **columns)


def test_each_endpoint_lacks_enough_of_the_prompt_for_a_prefill_apart_or_not() -> None:
    view = seen(fleet_view(3, uncached_tokens=[1000, 512, 511]), prefilling(engine_waiting=[3, 1]))
    asked = request(prompt_tokens=1000)
    for decider, wanted in (
        (Uncached(non_cached_tokens=512, prompt_tokens=1000), [1, 1, -1]),
        (Uncached(non_cached_tokens=512, prompt_tokens=1001), [-1, -1, -1]),
        (Uncached(), [-1, -1, -1]),
        (Always(), [1, 1, 1]),
    ):
        partners = policy(decider).rank(asked, view, {}, 0).partners
        assert partners[Role.PREFILL][:, 0].tolist() == wanted, decider


def test_workers_are_of_the_revision_of_who_decodes_and_nobody_works_for_itself() -> None:
    workers = replace(fleet_view(3, names=("a:1", "b:1", "c:1")), revisions=("x", "y", "x"))
    view = seen(fleet_view(3, names=("c:1", "d:1", "e:1")), workers, revisions=("x", "y", "z"))
    partners = policy(Always(), most=3).rank(request(), view, {}, 0).partners[Role.PREFILL]
    assert [sorted(set(row) - {-1}) for row in partners.tolist()] == [[0], [1], []]


def test_equal_workers_take_turns_by_chance() -> None:
    view = seen(fleet_view(1), prefilling(engine_waiting=[2, 2]))
    rows = [
        int(policy(Always()).rank(request(f"d{number}"), view, {}, 0).partners[Role.PREFILL][0, 0])
        for number in range(400)
    ]
    assert rows.count(0) == pytest.approx(200, abs=40)


def test_it_keeps_the_contract_of_policies() -> None:
    assert set(breaches(policy(Uncached(non_cached_tokens=1)), 30)) == set()
    with pytest.raises(ValueError, match="'decode' is wanted"):
        LlmDStages({Role.PREFILL: Stage()})


def test_a_scheduler_makes_a_leg_of_each_stage_and_a_record_of_it_comes_out_the_same() -> None:
    pool = [Endpoint(f"{role}:1", labels={"llm-d.ai/role": role}) for role in ("prefill", "decode", "encode")]
    scheduler = picker_of("llm-d-stages", pool=pool)
    for media, roles in (((), ["prefill", "decode"]), (("i",), ["encode", "prefill", "decode"])):
        decision = scheduler.decide(request("", prompt_tokens=100, media=media), 0.0, 0.0)
        assert [(leg.role.value, decision.address(leg)) for leg in decision.legs] == [
            (role, f"{role}:1") for role in roles
        ]
        recorded = decision_of(json.loads(msgspec.json.encode(to_record(decision))))
        again = rerun(recorded, create(recorded.policy, recorded.params))
        assert [(leg.role, leg.index) for leg in again.legs] == [
            (leg.role, leg.index) for leg in decision.legs
        ]


class Slots:
    """A datastore of endpoints by number."""

    @staticmethod
    def address_of(slot: int) -> str:
        return str(slot)


def test_the_memory_of_media_is_llm_ds_own() -> None:
    column = Media("media:4", most=4)
    columns, slots = PluginColumns([column]), np.arange(3)
    steps = map(json.loads, (FIXTURES / "llm_d_media.jsonl").read_text().splitlines())
    for number, step in enumerate(steps):
        asked = request(media=tuple(f"h{name}" for name in step["media"] or ()))
        view = fleet_view(3)
        found = columns.columns(asked, Slots(), view, slots, 0.0)["media:4"]  # type: ignore[arg-type]
        np.testing.assert_allclose(found, step["scores"], err_msg=str(number))
        columns.note(str(step["went"]), request(media=(f"h{step['sent']}",)), view, 0.0)


def drawn_view(case: dict[str, Any], head: dict[str, Any], rows: list[int]) -> Snapshot:
    """Some endpoints of a drawn snapshot in our columns; prompts are whole blocks."""
    block = head["block_tokens"]
    cached = np.array(case["match"], float)[rows] * block
    pick = {name: np.array(case[name], float)[rows] for name in
            ("waiting", "running", "kv_percent", "requests", "pending", "held")}  # fmt: skip
    view = fleet_view(
        len(rows),
        names=[f"e{row}" for row in rows],
        cached_tokens=cached,
        uncached_tokens=case["blocks"] * block - cached,
        engine_waiting=pick["waiting"],
        engine_running=pick["running"],
        engine_kv_usage=pick["kv_percent"] / 100.0,
        running_requests=pick["requests"],
        pending_uncached_tokens=pick["pending"],
    )
    media = case["media"]
    share = np.minimum(pick["held"], media) / media if media else np.zeros(len(rows))
    return replace(view, extra={"media:2048": share, PREFILLS: np.ones(len(share))})


def assert_picks(case: dict[str, Any], head: dict[str, Any], found: LlmDStages) -> None:
    """Compare every stage of a drawn case with what llm-d scored and picked."""
    names = [head["roles"][number] for number in case["roles"]]
    pool = [
        Endpoint(f"e{row}", labels={"llm-d.ai/role": name} if name else {}) for row, name in enumerate(names)
    ]
    roles = [found.roles(endpoint) for endpoint in pool]
    there = {role: [row for row, own in enumerate(roles) if role in own] for role in found.stages}
    decoding = there.pop(Role.DECODE)
    if case["decode"] is None:
        assert not decoding
        return
    workers = {role: drawn_view(case, head, rows) for role, rows in there.items() if rows}
    view = replace(drawn_view(case, head, decoding), workers=workers)
    asked = request(
        prompt_tokens=case["blocks"] * head["block_tokens"], media=tuple(map(str, range(case["media"])))
    )
    ranking = found.rank(asked, view, {}, 0)
    scores = np.full(len(names), np.nan)
    scores[decoding] = np.where(ranking.costs < FILTERED, ranking.terms["score"], np.nan)
    np.testing.assert_allclose(scores, floats(case["decode"]["scores"]), atol=1e-9)
    row = decoding.index(case["decode"]["picked"])
    for role in (Role.PREFILL, Role.ENCODE):
        wanted, rows = case[role.value], ranking.partners.get(role)
        picked = -1 if rows is None else int(rows[row, 0])
        if wanted is None:
            assert picked == -1
            continue
        best = floats(wanted["scores"])
        if found.stages[role].profile.picker == "random-picker":
            best = np.where(np.isnan(best), np.nan, 0.0)
        equal = set(np.flatnonzero(best >= np.nanmax(best) - 1e-9).tolist())
        if picked == -1:
            assert case["decode"]["picked"] in equal, "it would work for itself"
        else:
            assert there[role][picked] in equal


def floats(values: list[float | None]) -> np.ndarray[Any, Any]:
    return np.array([np.nan if value is None else value for value in values])


def test_the_same_stages_scores_and_picks_as_llm_ds_scheduler_on_five_thousand_snapshots() -> None:
    packed = (FIXTURES / "llm_d_stages.jsonl.xz").read_bytes()
    head, *cases = map(json.loads, lzma.decompress(packed).splitlines())
    policies = []
    for text in head["configs"]:
        section = translate(read_flags({"pool-name": "p"}), text, {}).config.policy
        made = create(section.name, section.params)
        assert isinstance(made, LlmDStages)
        policies.append(made)
    assert len(cases) == 5_000
    for number, case in enumerate(cases):
        try:
            assert_picks(case, head, policies[case["config"]])
        except (AssertionError, NoEndpointError) as error:
            raise AssertionError(f"{number}: {case}") from error
