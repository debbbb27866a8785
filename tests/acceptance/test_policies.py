"""Policies serve by their names, decide the same in a verification, and run in the simulator."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import run, until

if TYPE_CHECKING:
    from tests.acceptance.kit import Stack

ROOT = Path(__file__).parents[2]
POLICIES = [
    "dynamo",
    "gorgo",
    "gorgo-hillclimb",
    "gorgo-ms",
    "gorgo-v1",
    "laar",
    "laar-paper",
    "least-load",
    "least-request",
    "llm-d",
    "llm-d-profile",
    "llm-d-profiles",
    "llm-d-stages",
    "lmetric",
    "local-first",
    "lodestar",
    "lodestar-paper",
    "mooncake",
    "mooncake-static",
    "nearest",
    "power-of-two",
    "preble-e2",
    "prefix-cache",
    "prefix-cache-and-load",
    "prefix-hash",
    "prefix-threshold",
    "random",
    "round-robin",
    "session-affinity",
    "session-affinity-bounded",
    "session-affinity-hash256",
    "sglang-cache-aware",
]


#: The default, one that learns, one of configured profiles, one of a client's header, a baseline.
SERVED = ["gorgo-ms", "lodestar", "llm-d-profiles", "session-affinity", "preble-e2"]


@pytest.mark.parametrize("policy", SERVED)
def test_a_policy_serves_and_its_decisions_verify(stack: Stack, policy: str) -> None:
    """Each starts a picker of its own; replicas and Envoy serve them all."""
    stack.picker.stop()
    records = f"records-{policy}"
    stack.start_picker(policy={"name": policy}, records={"folder": records})
    until(stack.ready)
    until(lambda: "x-epp-decision-id" in stack.chat().headers)
    assert [stack.chat(f"question {n} " * (50 * n + 1)).status for n in range(4)] == [200] * 4
    decides = policy.replace("profiles", "profile")  # of several that a header names, one decides
    assert f"policy {decides}" in stack.epp("explain", "--url", stack.picker_url)
    stack.picker.stop()
    assert "identical" in stack.epp("records", "verify", records)


def test_the_list_of_policies_is_complete() -> None:
    listed = run("lab", "compare", "--list").partition("policies")[2].partition("yardsticks")[0]
    assert sorted(listed.replace(",", " ").split()) == POLICIES


def test_the_guides_policy_of_another_package_serves_and_is_compared(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "policies.md").read_text()
    module, project = (re.search(f"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("python", "toml"))
    assert module is not None
    assert project is not None
    (tmp_path / "tidal").mkdir()
    (tmp_path / "tidal" / "policy.py").write_text(module[1])
    (tmp_path / "pyproject.toml").write_text(project[1])
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed)]
    subprocess.run([*pip, "--no-build-isolation", str(tmp_path)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=":")
    stack.picker.stop()
    stack.start_picker(policy={"name": "tidal"})
    until(stack.ready)
    until(lambda: "x-epp-decision-id" in stack.chat().headers)
    assert "policy tidal" in stack.epp("explain", "--url", stack.picker_url)
    compared = run(
        *("lab", "compare", "--workload", "demo", "--policy", "tidal,round-robin"),
        *("--seconds", "30", "--seeds", "1"),
    )
    assert "tidal" in compared
