"""The loads that queues are judged on: who shares them, and how fair service is measured."""

from __future__ import annotations

from collections import Counter

import pytest

from epp_lab.compare.plan import Source
from epp_lab.experiments.queue import jain
from epp_lab.workloads.tenants import Tenancy


def test_a_load_without_tenancy_stays_as_it_is() -> None:
    plain = Source(workload="demo").requests(1)
    assert {(one.tenant, one.priority, one.deadline_ms) for one in plain} == {("", 0, 0.0)}


def test_the_first_tenant_has_as_many_sessions_as_all_others_together() -> None:
    source = Source(workload="wild-chat", until_s=900.0, tenancy=Tenancy(4, 0.2, (1_000.0, 2_000.0)))
    sessions = {one.session: one for one in source.requests(1)}
    shares = Counter(one.tenant for one in sessions.values())
    high = sum(one.priority for one in sessions.values()) / len(sessions)
    assert shares["t0"] / len(sessions) == pytest.approx(0.5, abs=0.05)
    assert shares["t3"] == pytest.approx(shares["t2"], rel=0.3)
    assert high == pytest.approx(0.2, abs=0.04)
    assert all(1_000.0 <= one.deadline_ms <= 2_000.0 for one in sessions.values())


def test_who_asks_for_little_and_gets_it_leaves_the_index_at_one() -> None:
    assert jain({"a": 10.0, "b": 45.0, "c": 45.0}, {"a": 10.0, "b": 80.0, "c": 200.0}) == pytest.approx(1.0)


def test_serving_one_of_two_alike_halves_the_index() -> None:
    assert jain({"a": 100.0, "b": 0.0}, {"a": 100.0, "b": 100.0}) == pytest.approx(0.5)
