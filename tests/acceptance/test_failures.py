"""What users see when a part dies, hangs, or is told nonsense."""

from __future__ import annotations

import threading
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import http, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.acceptance.kit import Stack


def load(stack: Stack, count: int, during: int = 0, event: Callable[[], None] | None = None) -> list[int]:
    """Send requests one after the other; ``event`` is called after ``during`` of them."""
    statuses = []
    for number in range(count):
        if event and number == during:
            event()
        statuses.append(stack.chat(f"question {number}").status)
    return statuses


def test_a_hung_or_killed_picker_costs_no_request_and_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as stack:
        assert load(stack, 8, 3, lambda: stack.picker.signal(SIGSTOP)) == [200] * 8
        stack.picker.signal(SIGCONT)
        until(lambda: "x-epp-decision-id" in stack.chat().headers)
        assert load(stack, 12, 4, lambda: stack.picker.signal(SIGKILL)) == [200] * 12
        stack.picker.wait()
        stack.start_picker()
        until(stack.ready)
        until(lambda: "x-epp-decision-id" in stack.chat().headers)


def test_a_killed_replica_is_avoided_and_returns(tmp_path: Path) -> None:
    def kill() -> None:
        stack.replicas["a"].signal(SIGKILL)
        stack.replicas["a"].wait()  # a request on its way to it when it dies would fail

    with serving(tmp_path, apart=True) as stack:
        assert load(stack, 15, 5, kill) == [200] * 15
        stack.start_replica("a")
        until(
            lambda: stack.chat(f"again {stack.metric('epp_decisions_total')}").headers["x-served-by"] == "a"
        )


def test_a_pool_file_is_followed_and_a_broken_one_keeps_the_last_good_one(tmp_path: Path) -> None:
    with serving(tmp_path) as stack:
        stack.write_pool("b", "c")
        until(lambda: stack.metric("llm_d_epp_ready_endpoints") == 2)
        assert {stack.chat(f"q {n}").headers["x-served-by"] for n in range(12)} <= {"b", "c"}
        (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: nowhere}]", encoding="utf-8")
        until(lambda: stack.metric("epp_file_ok", file="endpoints") == 0)
        assert load(stack, 3) == [200] * 3
        stack.write_pool()
        until(lambda: stack.metric("epp_file_ok", file="endpoints") == 1)


def test_a_model_that_nobody_serves_is_refused(stack: Stack) -> None:
    answer = stack.chat(model="unknown-model")
    assert answer.status in (404, 503), answer


def test_a_drain_ends_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as stack:
        answers = []
        slow = threading.Thread(target=lambda: answers.append(stack.chat(max_tokens=64, stream=True)))
        slow.start()
        until(lambda: stack.metric("epp_decisions_total") == 1)
        stack.picker.signal(SIGTERM)
        assert stack.picker.wait() == 0
        slow.join()
        assert answers[0].status == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_the_pickers_own_http_side_answers(stack: Stack, path: str) -> None:
    assert http(stack.picker_url + path).status == 200
