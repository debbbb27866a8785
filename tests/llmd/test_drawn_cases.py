"""The same endpoints left, scores and set of best as llm-d's own filters and scorers, on 10,000 drawn snapshots.

`drawn_cases.jsonl.xz` was written by `tests.llmd.draw.make_cases`, which says how, at the commit of its first line:
prompts with partial blocks, metrics that are stale, missing or NaN, pools of one and of 200 endpoints. A missing
metric is 0 there, as llm-d reads it; a picker gives its policies the fullest known value instead (docs/llm-d.md).
"""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from epp.errors import NoEndpointError
from epp.llmd.flags import read_flags
from epp.llmd.policies.columns import lora_score
from epp.llmd.policies.plugins import by_labels
from epp.llmd.policies.profile import FILTERED, LlmDProfile
from epp.llmd.settings import translate
from epp.policies.registry import create
from epp.signals.metrics_text import Adapters
from epp.types import Endpoint
from tests.kit.fleets import fleet_view, request

if TYPE_CHECKING:
    from epp.config.schema import PolicySection
    from epp.policies.base import Policy
    from epp.types import Floats, Snapshot

CASES = Path(__file__).with_name("drawn_cases.jsonl.xz")


def _named(numbers: list[int]) -> frozenset[str]:
    return frozenset(f"m{number}" for number in numbers)


def snapshot(prompt: int, rows: list[list[Any]], block: int) -> Snapshot:
    """What an index with llm-d's blocks knows, and metrics as scraped; NaN where the usage is."""
    held, _, requests, pending, metrics, stale, *_ = map(list, zip(*rows, strict=True))
    shown = np.array([each or [0, 0, 0] for each in metrics], float)
    cached = np.array([tokens if tokens == prompt else tokens // block * block for tokens in held], float)
    missing = np.array([each is None for each in metrics])
    seen = fleet_view(
        len(rows),
        cached_tokens=cached,
        uncached_tokens=prompt - cached,
        engine_waiting=shown[:, 0],
        engine_running=shown[:, 1],
        engine_kv_usage=np.where(shown[:, 2] < 0.0, math.nan, shown[:, 2] / 100.0),
        engine_age_ms=np.where(missing | np.array(stale), 7.2e6, 1.0),
        running_requests=requests,
        pending_uncached_tokens=pending,
    )
    lora = [lora_score(Adapters(_named(row[6]), _named(row[7]), row[8]), "m0") for row in rows]
    return replace(seen, extra={"lora": np.array(lora)}, unknown={"engine_kv_usage": missing})


def scored(case: list[Any], head: dict[str, Any], policy: Policy, section: PolicySection) -> Floats:
    """The score of each endpoint, infinite below for those that are left out."""
    _, prompt, tier, rows, _ = case
    labels = [{"llm-d.ai/role": role} if role else {} for role in (head["roles"][row[1]] for row in rows)]
    admitted = [place for place, own in enumerate(labels) if policy.admits(Endpoint("a:1", labels=own))]
    scores = np.full(len(rows), -math.inf)
    if not admitted:
        return scores
    seen = snapshot(prompt, [rows[place] for place in admitted], head["block_tokens"])
    wanted, extra = head["roles"][tier], dict(seen.extra)
    kept = [labels[place] for place in admitted]
    extra["label:x-tier=llm-d.ai/role"] = np.array(
        [bool(wanted) and own.get("llm-d.ai/role") == wanted for own in kept], float
    )
    if isinstance(policy, LlmDProfile):
        for part in filter(by_labels, policy.filters.values()):
            extra[part.admitted.name] = np.array([part.admits(own) for own in kept], float)
    asked = request(prompt_tokens=prompt, block_tokens=float(head["block_tokens"]), model="m0")
    try:
        ranking = policy.rank(asked, replace(seen, extra=extra), section.weights, 0)
    except NoEndpointError:
        return scores
    found = ranking.terms.get("score", sum(section.weights.values()) - ranking.costs)
    scores[admitted] = np.where(ranking.costs >= FILTERED, -math.inf, found)
    return scores


def test_endpoints_left_scores_and_the_set_of_best_are_llm_ds_on_ten_thousand_snapshots() -> None:
    head, *cases = map(json.loads, lzma.decompress(CASES.read_bytes()).splitlines())
    configs = [json.dumps(each) for each in head["configs"]]
    read = [translate(read_flags({"pool-name": "p"}), text, {}).config.policy for text in configs]
    policies = [create(each.name, each.params) for each in read]
    assert len(cases) == 10_000
    for number, case in enumerate(cases):
        found = scored(case, head, policies[case[0]], read[case[0]])
        wanted = np.array([-math.inf if score is None else float(score) for score in case[-1]])
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-9, err_msg=f"{number}: {case}")
        if not np.isnan(wanted).any():  # a score that is NaN makes any order in llm-d
            assert (found >= found.max() - 1e-9).tolist() == (wanted >= wanted.max() - 1e-9).tolist(), number
