"""What would be picked now, asked of a whole core: the answer is the next decision's, and asking changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.config.plan import Plan, Split, render_plan
from epp.errors import ClientError, EppError, NoEndpointError
from epp.extproc.types import HttpRequest
from epp.request.recent import PREVIEW
from epp.schedule.waiting import in_time
from tests.server.test_feedback_core import POOL, WORDS, Deployment

if TYPE_CHECKING:
    from pathlib import Path

    from epp.schedule.decision import Decision

QUESTION = [{"role": "user", "content": WORDS * 20}]
SPLIT = Split(
    id="t",
    weights={"stall_weight": 0.5},
    valid_from_wall_s=0.0,
    valid_until_wall_s=1e10,
    share=0.5,
)


async def preview(deployment: Deployment, path: str = "/v1/chat/completions", **fields: Any) -> Decision:
    body = json.dumps({"model": "m", "messages": QUESTION, **fields}).encode()
    request = HttpRequest("POST", path, {"content-type": "application/json"}, body)
    return await in_time(deployment.director.preview(request))


async def state(deployment: Deployment) -> tuple[object, ...]:
    """Everything that a decision writes."""
    scheduler, datastore = deployment.app.scheduler, deployment.datastore
    return (
        await deployment.app.metrics.page(),
        datastore.in_flight_tokens(np.arange(len(POOL))).tolist(),
        datastore.index.tokens(0),
        scheduler.in_flight,
        scheduler._sequence,
        dict(scheduler._roots._seen),
        dict(datastore.popularity._seen),
        dict(datastore.first_tokens._means_ms._means),
        deployment.app._decision_ids._last,
        [each.id for each in reversed(deployment.director.recent)],
        len(deployment.director.leases._open),
    )


async def test_a_preview_is_the_next_decision_and_changes_nothing(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    book = deployment.app.scheduler.weights
    book.update("tuner", render_plan(Plan(policy=book.policy, weights={}, trial=SPLIT)), "t")
    for number in range(5):
        deployment.decide([*QUESTION, {"role": "user", "content": f"{number}"}])
    before = await state(deployment)
    found = await preview(deployment)
    assert await state(deployment) == before
    assert found.id == PREVIEW
    decision = deployment.decide(QUESTION)
    assert decision.endpoint == found.endpoint
    assert decision.ranking.costs.tolist() == found.ranking.costs.tolist()
    assert (await state(deployment)) != before


@pytest.mark.parametrize(
    ("path", "fields", "error"),
    [
        ("/nowhere", {}, ClientError),
        ("/v1/chat/completions", {"messages": 1}, ClientError),
        ("/v1/chat/completions", {"model": "another"}, NoEndpointError),
    ],
)
async def test_what_would_be_refused_is_told_and_counted_nowhere(
    tmp_path: Path, path: str, fields: dict[str, Any], error: type[EppError]
) -> None:
    deployment = Deployment(tmp_path)
    deployment.app.scheduler.filters.refuse(POOL[0].address, "another")
    deployment.app.scheduler.filters.refuse(POOL[1].address, "another")
    deployment.app.scheduler.filters.refuse(POOL[2].address, "another")
    before = await state(deployment)
    with pytest.raises(error):
        await preview(deployment, path, **fields)
    assert await state(deployment) == before
