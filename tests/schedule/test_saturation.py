from __future__ import annotations

import math

import numpy as np
import pytest

from epp.config.schema import Saturation
from epp.errors import NotAdmittedError
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.admission import AdmissionController, saturation
from epp.schedule.waiting import at_once
from epp.signals.datastore import Datastore
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint
from tests.kit.requests import asked

NAN = math.nan


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "expected"),
    [
        ([], [], 1.0),  # an empty pool
        ([0.0], [0.0], 0.0),
        ([5.0], [0.0], 1.0),  # at the queue's threshold
        ([0.0], [0.8], 1.0),  # at the cache's
        ([2.5], [0.8], 1.0),  # the larger of both
        ([5.0, 0.0], [0.0, 0.4], 0.75),  # the mean over endpoints
        ([NAN, 0.0], [NAN, 0.0], 0.5),  # who tells nothing counts as saturated
        ([NAN], [0.4], 0.5),  # who tells one thing is judged by it
        ([10.0, 0.0], [0.0, 0.0], 1.0),  # above 1 where it is, so that one overfull endpoint weighs more
    ],
)
def test_saturation_is_the_mean_of_the_fuller_of_queue_and_cache(
    waiting: list[float], kv_usage: list[float], expected: float
) -> None:
    assert saturation(np.array(waiting), np.array(kv_usage), Saturation()) == pytest.approx(expected)


def fleet(*waiting: float, draining: bool = False) -> Datastore:
    made = Datastore(PrefixIndex())
    made.apply([Endpoint(f"10.0.0.{n}:80", draining=draining) for n in range(len(waiting))], 0.0)
    for slot, queue in enumerate(waiting):
        made.engine.update(slot, EngineSample("vllm", 1.0, queue, 0.1, 1000), 0.0)
    return made


PRIORITIES = {"batch": -1, "chat": 5, "plain": 0}
NEW, OLD = "x-llm-d-inference-objective", "x-gateway-inference-objective"


@pytest.mark.parametrize(
    ("headers", "dropped"),
    [
        ({NEW: "batch"}, True),
        ({OLD: "batch"}, True),
        ({NEW: "chat"}, False),
        ({NEW: "plain"}, False),
        ({NEW: "unknown"}, False),
        ({}, False),
        ({NEW: "chat", OLD: "batch"}, False),  # the newer name wins
        ({NEW: "", OLD: "batch"}, True),
    ],
)
def test_only_requests_of_negative_priority_are_dropped(headers: dict[str, str], dropped: bool) -> None:
    admission = AdmissionController(fleet(9.0), Saturation(), lambda name: PRIORITIES.get(name, 0))
    assert refuses(admission, admission.priority(headers)) is dropped


def refuses(admission: AdmissionController, priority: int, now_s: float = 0.0) -> bool:
    try:
        at_once(admission.admit(asked(api="openai-chat", priority=priority), now_s))
    except NotAdmittedError:
        return True
    return False


def test_endpoints_that_drain_or_have_gone_silent_are_not_room() -> None:
    priority = PRIORITIES.__getitem__
    assert refuses(AdmissionController(fleet(0.0, draining=True), Saturation(), priority), -1)
    assert refuses(AdmissionController(fleet(0.0), Saturation(), priority), -1, now_s=1e6), "stale"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Saturation(stale_after_s=0.5), 1.0),  # metrics of a second ago
        (Saturation(stale_after_s=2.0), 0.125),
        (Saturation(running_requests=4), 0.25),  # two of one endpoint, none of the other
        (Saturation(pending_tokens=1000), 0.5),
        (Saturation(running_requests=4, pending_tokens=1000), 0.5),
    ],
)
def test_llm_ds_detectors_of_utilization_and_concurrency(settings: Saturation, expected: float) -> None:
    made = fleet(0.0, 0.0)
    for name, tokens in (("a", 600), ("b", 400)):
        made.ledger.reserve(name, 0, tokens, tokens, 1.0)
    assert AdmissionController(made, settings, PRIORITIES.__getitem__).saturation(1.0) == pytest.approx(
        expected
    )
