"""llm-d's profiles: the same scores, and so the same pick or one of its equals, as its own scheduler.

`fixtures/llm_d_picks.jsonl.xz` was written by a Go program around llm-d/llm-d-router at the commit that its
first line names: configurations loaded by that router's own loader, 10,000 snapshots drawn with a fixed seed,
and the weighted score that its scheduler gave each endpoint, null for those that a filter removed.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from epp.errors import NoEndpointError
from epp.llmd.flags import read_flags
from epp.llmd.policies.columns import lora_score
from epp.llmd.policies.plugins import TPOT_SLO, TTFT_SLO
from epp.llmd.policies.profile import FILTERED
from epp.llmd.settings import translate
from epp.policies.registry import create
from epp.schedule.propensities import propensities
from epp.signals.metrics_text import Adapters
from epp.types import Endpoint
from tests.kit.fleets import fleet_view, request

if TYPE_CHECKING:
    from collections.abc import Collection

    from epp.config.schema import PolicySection
    from epp.policies.base import Policy
    from epp.types import Floats, Snapshot

PICKS = Path(__file__).with_name("fixtures") / "llm_d_picks.jsonl.xz"


def _named(numbers: list[int]) -> frozenset[str]:
    return frozenset(f"m{number}" for number in numbers)


def snapshot(case: dict[str, Any], head: dict[str, Any], asks: Collection[str]) -> Snapshot:
    """A drawn snapshot in our columns; prompts are whole blocks, as the original counts them."""
    count, block = len(case["match"]), head["block_tokens"]
    cached = np.array(case["match"], float) * block
    cold = {name: place for place, name in enumerate(case["cold"])}
    adapters = zip(case["active"], case["loading"], case["most"], strict=True)
    lora = [
        lora_score(Adapters(_named(active), _named(loading), most), "m0")
        for active, loading, most in adapters
    ]
    extra = {
        **{name: [cold.get(n, -1) for n in range(count)] for name in asks if name.startswith("cold")},
        "lora": lora,
        TTFT_SLO.name: [case["slo"][0]] * count,
        TPOT_SLO.name: [case["slo"][1]] * count,
        "label:x-tier=llm-d.ai/role": [
            bool(case["tier"]) and head["roles"][n] == case["tier"] for n in case["roles"]
        ],
    }
    snapshot = fleet_view(
        count,
        cached_tokens=cached,
        uncached_tokens=case["blocks"] * block - cached,
        engine_waiting=case["waiting"],
        engine_running=case["running"],
        engine_kv_usage=np.array(case["kv_percent"]) / 100.0,
        engine_age_ms=np.where(case["stale"], 7.2e6, 1.0),
        running_requests=case["requests"],
        pending_uncached_tokens=case["pending"],
        prefill_base_ms=[0.0] * count,
        **{
            name: [head[name]] * count
            for name in ("prefill_ms_per_token", "decode_base_ms", "decode_ms_per_request")
        },
    )
    return replace(snapshot, extra={name: np.array(extra[name], float) for name in asks if name in extra})


def test_the_same_scores_and_chances_as_llm_ds_scheduler_on_ten_thousand_snapshots() -> None:
    head, *cases = map(json.loads, lzma.decompress(PICKS.read_bytes()).splitlines())
    read = [translate(read_flags({"pool-name": "p"}), text, {}).config.policy for text in head["configs"]]
    policies = [create(each.name, each.params) for each in read]
    assert len(cases) == 10_000
    for number, case in enumerate(cases):
        section, policy = read[case["config"]], policies[case["config"]]
        found, chances = scored(case, head, policy, section)
        wanted = np.array([np.nan if score is None else score for score in case["scores"]])
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-9, err_msg=f"{number}: {case}")
        kept = ~np.isnan(wanted)
        if not kept.any():
            continue
        shares = np.where(kept, wanted, 0.0)
        if section.params.get("picker") == "random-picker":
            shares = kept
        elif section.params.get("picker") != "weighted-random-picker":
            shares = kept & (shares >= wanted[kept].max() - 1e-9)
        np.testing.assert_allclose(chances, shares / shares.sum(), atol=1e-9, err_msg=f"{number}: {case}")


def scored(
    case: dict[str, Any], head: dict[str, Any], policy: Policy, section: PolicySection
) -> tuple[Floats, Floats]:
    """Score of each endpoint, NaN of those that are filtered out, and its chance."""
    count, whole = (
        len(case["match"]),
        snapshot(case, head, {column.name for column in getattr(policy, "required_columns", ())}),
    )
    scores, chances = np.full(count, np.nan), np.zeros(count)
    roles = [head["roles"][number] for number in case["roles"]]
    labels = [{"llm-d.ai/role": role} if role else {} for role in roles]
    rows = [row for row in range(count) if policy.admits(Endpoint("a:1", labels=labels[row]))]
    if not rows:
        return scores, chances
    seen = replace(
        whole,
        endpoints=tuple(whole.endpoints[row] for row in rows),
        block=whole.block[:, rows],
        extra={name: column[rows] for name, column in whole.extra.items()},
    )
    tokens = case["blocks"] * head["block_tokens"]
    try:
        ranking = policy.rank(request(prompt_tokens=tokens), seen, section.weights, 0)
    except NoEndpointError:
        return scores, chances
    score = ranking.terms.get("score", sum(section.weights.values()) - ranking.costs)
    scores[rows] = np.where(ranking.costs < FILTERED, score, np.nan)
    drawn = policy.drawn(ranking, section.weights, section.params)
    chances[rows] = propensities(ranking.costs, tolerance=0.0, drawn=drawn)
    return scores, chances
