"""Every policy serves by its name, decides the same in a verification, and runs in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import run, until

if TYPE_CHECKING:
    from tests.acceptance.kit import Stack

POLICIES = [
    "dynamo",
    "dynamo-softmax",
    "gorgo",
    "gorgo-ms",
    "gorgo-v1",
    "laar",
    "laar-paper",
    "least-load",
    "least-load-stale",
    "least-request",
    "least-request-stale",
    "llm-d",
    "llm-d-affinity",
    "lmetric",
    "lodestar",
    "mooncake",
    "mooncake-static",
    "power-of-two",
    "preble-e2",
    "prefix-cache",
    "prefix-cache-and-load",
    "prefix-cache-stale",
    "prefix-hash",
    "prefix-threshold",
    "random",
    "round-robin",
    "session-affinity",
    "session-affinity-bounded",
    "session-affinity-hash256",
    "sglang-cache-aware",
    "sglang-cache-aware-library",
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_serves_and_its_decisions_verify(stack: Stack, policy: str) -> None:
    """Each starts a picker of its own; replicas and Envoy serve them all."""
    stack.picker.stop()
    records = f"records-{policy}"
    stack.start_picker(policy={"name": policy}, records={"folder": records})
    until(stack.ready)
    until(lambda: "x-epp-decision-id" in stack.chat().headers)
    assert [stack.chat(f"question {n} " * (50 * n + 1)).status for n in range(4)] == [200] * 4
    assert f"policy {policy}" in stack.epp("explain", "--url", stack.picker_url)
    stack.picker.stop()
    assert "identical" in stack.epp("records", "verify", records)


def test_the_list_of_policies_is_complete() -> None:
    listed = run("replay", "--list").partition("policies")[2].partition("yardsticks")[0]
    assert sorted(listed.replace(",", " ").split()) == POLICIES
