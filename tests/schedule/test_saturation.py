from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from epp.config.schema import Limits, Saturation
from epp.errors import NotAdmittedError
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.admission import AdmissionController, is_below_limit, saturation
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


@pytest.mark.parametrize(
    ("limits", "found", "served"),
    [
        # Of the priorities 10, 1 and 0. By hand, source [E]: a limit of each, or whose look it is.
        ({}, 0.99, "10 1 0"),
        ({}, 1.0, ""),
        ({"threshold": 0.5}, 0.5, ""),
        ({"policy": "priority-holdback", "min_ceiling": 0.4, "max_ceiling": 0.8}, 0.39, "10 1 0"),  # .8 .6 .4
        ({"policy": "priority-holdback", "min_ceiling": 0.4, "max_ceiling": 0.8}, 0.4, "10 1"),
        ({"policy": "priority-holdback", "min_ceiling": 0.4, "max_ceiling": 0.8}, 0.61, "10"),
        ({"policy": "priority-holdback", "min_ceiling": 0.4, "max_ceiling": 0.8}, 0.8, ""),
        ({"policy": "priority-holdback", "min_ceiling": 0.5, "domain": "value"}, 0.54, "10 1"),  # 1 .55 .5
        ({"policy": "priority-holdback", "min_ceiling": 0.5, "domain": "value"}, 0.55, "10"),
        ({"policy": "soft-reflective-ceiling"}, 0.49, "10 1 0"),  # ceilings 1 .755 .51
        ({"policy": "soft-reflective-ceiling"}, 0.65, "10 1"),  # 1 .675 .35; each 2nd look 0, too
        ({"policy": "soft-reflective-ceiling"}, 0.75, "10"),  # 1 .625 .25; each 3rd
        ({"policy": "soft-reflective-ceiling"}, 1.0, ""),
    ],
)
def test_a_priority_is_served_below_its_limit(limits: dict[str, Any], found: float, served: str) -> None:
    def at(look: int) -> str:
        priorities = [10, 1, 0]
        below = (is_below_limit(found, Limits(**limits), one, priorities, look) for one in priorities)
        return " ".join(str(one) for one, yes in zip(priorities, below, strict=True) if yes)

    assert at(1) == served
    period = {0.65: 2, 0.75: 3}.get(found, 1) if "soft" in limits.get("policy", "") else 1
    assert at(period) == ("10 1 0" if period > 1 else served)
    alone = is_below_limit(0.79, Limits(policy="priority-holdback", max_ceiling=0.8), 0, [0], 1)
    assert alone, "one priority has the highest limit"


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
