"""What priority a request has outside of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.types import Endpoint
from tests.kit.apps import app_of, ask

if TYPE_CHECKING:
    from pathlib import Path


def test_the_configuration_gives_objectives_their_priority(tmp_path: Path) -> None:
    app = app_of(tmp_path, queue={"enabled": True, "priorities": {"high": 2}})
    app.scheduler.set_pool([Endpoint("10.0.0.1:80")], 0.0)
    for name, priority in (("high", 2), ("other", 0)):
        found = ask(app, x_llm_d_inference_objective=name)
        decision = app.director.recent.get(found.pick.decision_id)
        assert decision is not None
        assert decision.request.priority == priority
