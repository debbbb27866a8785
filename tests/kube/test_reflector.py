"""The rules of list and watch, told step by step to a server that plays a script."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.kube.api import KubeApi
from epp.kube.objects import InferencePool, Named, Pod
from epp.kube.problems import KubeError, Reason
from epp.kube.reflector import PAGE_OBJECTS, RELIST_S, WATCH_S, Reflector, Resource, Tools
from tests.kit.clock import ManualClock
from tests.kit.kubefollow import Counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

Step = KubeError | dict[str, Any] | list[Any]


class Over(Exception):  # noqa: N818  # it is no error
    """The script is played."""


class Script(KubeApi):
    """An API that answers from a list: a dict to a list, a list of events to a watch, an error to either."""

    def __init__(self, *steps: Step) -> None:
        self.steps, self.asked = list(steps), list[dict[str, str]]()
        self.clock, self.slept = ManualClock(), list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    async def get(
        self,
        path: str,  # noqa: ARG002  # the API's shape
        params: Mapping[str, str],
        *,
        metadata_only: bool = False,  # noqa: ARG002  # the API's shape
    ) -> bytes:
        step = self._next(params)
        assert isinstance(step, dict), "a list was not expected here"
        return json.dumps(step).encode()

    @asynccontextmanager
    async def watch(
        self,
        path: str,  # noqa: ARG002  # the API's shape
        params: Mapping[str, str],
        *,
        metadata_only: bool = False,  # noqa: ARG002  # the API's shape
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        step = self._next({**params, "watch": "true"})
        assert isinstance(step, list), "a watch was not expected here"
        yield self._play(step)

    async def _play(self, events: list[Any]) -> AsyncIterator[bytes]:
        for event in events:
            if isinstance(event, KubeError):
                raise event
            if isinstance(event, float):
                self.clock.advance(event)
                continue
            yield event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"

    def _next(self, params: Mapping[str, str]) -> Step:
        self.asked.append(dict(params))
        if not self.steps:
            raise Over
        step = self.steps.pop(0)
        if isinstance(step, KubeError):
            raise step
        return step


def a_pod(name: str, version: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": str(version)}}


def a_list(*names: str, version: int, more: str = "") -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": str(version), "continue": more},
        "items": [a_pod(name) for name in names],
    }


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": a_pod(name, version)}


async def play(*steps: Step, kind: type[Named] = Pod) -> tuple[Script, Reflector[Any], Counted]:
    script, seen = Script(*steps), Counted()
    decode = msgspec.json.Decoder(kind).decode
    resource: Resource[Any] = Resource("pods", "/api/v1/pods", decode, {"labelSelector": "app=x"})
    mirror = Reflector(resource, Tools(script, seen, script.clock, script.sleep, seed=7), lambda: None)
    with pytest.raises(Over):
        await mirror.run()
    return script, mirror, seen


def names(mirror: Reflector[Any]) -> list[str]:
    return sorted(pod.metadata.name for pod in mirror.objects.values())


async def test_too_old_lists_again_and_keeps_what_it_had_meanwhile() -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    script, mirror, seen = await play(a_list("a", version=5), [gone], a_list("b", version=9))
    assert names(mirror) == ["b"]
    assert seen.failures["pods", "gone"] == 1
    assert "watch" not in script.asked[2]
    assert mirror.problem is None, "told 410 is nothing wrong"


async def test_it_lists_by_pages_then_watches_from_there_with_bookmarks() -> None:
    script, mirror, _ = await play(a_list("a", version=5, more="next"), a_list("b", version=5), [])
    first, second, watch = script.asked[:3]
    assert first == {"labelSelector": "app=x", "limit": str(PAGE_OBJECTS)}
    assert second["continue"] == "next"
    assert (watch["resourceVersion"], watch["allowWatchBookmarks"], watch["labelSelector"]) == (
        "5",
        "true",
        "app=x",
    )
    assert WATCH_S[0] <= float(watch["timeoutSeconds"]) <= WATCH_S[1]
    assert names(mirror) == ["a", "b"]


async def test_events_are_applied_and_a_watch_that_ends_is_resumed_from_the_last_of_them() -> None:
    steps = [
        event("ADDED", "b", 6),
        event("DELETED", "a", 7),
        event("MODIFIED", "c", 8),
        event("BOOKMARK", "", 9),
    ]
    script, mirror, _ = await play(a_list("a", version=5), steps)
    assert names(mirror) == ["b", "c"]
    assert script.asked[-1]["resourceVersion"] == "9", "a bookmark moves on without an object"
    assert (script.slept, sum("limit" in asked for asked in script.asked)) == ([], 1)


async def test_a_bookmark_needs_no_more_than_its_version() -> None:
    """What a released API server sends for a custom resource has neither name nor spec."""
    mark = {"kind": "InferencePool", "metadata": {"resourceVersion": "9", "creationTimestamp": None}}
    marked = [{"type": "BOOKMARK", "object": mark}]
    script, _, seen = await play({"metadata": {"resourceVersion": "5"}}, marked, kind=InferencePool)
    assert (script.asked[-1]["resourceVersion"], seen.failures) == ("9", {})


async def test_a_failure_takes_nothing_away_and_is_resumed() -> None:
    failure = KubeError(Reason.SERVER, "x")
    script, mirror, seen = await play(a_list("a", version=5), [event("ADDED", "b", 6), failure])
    assert names(mirror) == ["a", "b"]
    assert script.asked[-1]["resourceVersion"] == "6"
    assert seen.failures["pods", "server"] == 1
    assert mirror.problem is failure


async def test_waits_double_up_to_a_bound_and_start_small_after_success() -> None:
    failures = [KubeError(Reason.UNREACHABLE, "down")] * 9
    script, _, _ = await play(
        *failures, a_list(version=1), [event("ADDED", "a", 2), KubeError(Reason.UNREACHABLE, "x")]
    )
    bounds = [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 0.5]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(script.slept, bounds, strict=True)), (
        script.slept
    )


async def test_after_a_while_it_lists_again_whatever_the_watch_says() -> None:
    script, mirror, _ = await play(a_list("ghost", version=5), [RELIST_S + 1.0], a_list(version=6))
    assert "watch" not in script.asked[2]
    assert names(mirror) == []


async def test_a_line_that_cannot_be_read_costs_a_list_and_not_the_mirror() -> None:
    script, mirror, seen = await play(a_list("a", version=5), [b"{\n"], a_list("a", version=6))
    assert "watch" not in script.asked[2]
    assert seen.failures["pods", "malformed"] == 1
    assert names(mirror) == ["a"]


async def test_an_object_that_cannot_be_read_costs_itself_alone() -> None:
    odd = {"metadata": {"name": 7}}
    listed = a_list("a", version=5)
    listed["items"].append(odd)
    _, mirror, seen = await play(listed, [{"type": "ADDED", "object": odd}, event("ADDED", "b", 6)])
    assert names(mirror) == ["a", "b"]
    assert seen.failures["pods", "malformed"] == 2
