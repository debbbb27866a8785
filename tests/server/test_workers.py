"""`epp serve --workers`: several processes behind one port, seen through a real Envoy of several threads."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from epp.cluster.host_link import HostLink, Mailbox
from epp.cluster.messages import Group
from epp.config.schema import ProgramsSection, QueueSection
from epp.errors import EppError
from epp.records.schema import join
from epp.request.routed_reports import RoutedReports
from epp.rpc.connection_balancer import ConnectionBalancer, WorkerBoard
from epp.schedule.late_binding import LateBinding
from epp.server.process import SystemClock
from epp.server.siblings import merged
from epp.types import Endpoint, RequestInfo
from tests.kit.clock import ManualClock
from tests.kit.picker import CONFIG, PickerProcess, Serving
from tests.kit.records import picker_of, recorded
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 4
#: The load that workers know of each other is old by a moment: no holder of a prefix is passed over for it.
HOLDERS = {"name": "prefix-cache", "weights": {"imbalance_requests": 1000.0, "sigmas": 10.0}}


def pids(serving: Serving) -> dict[int, int]:
    """The newest process of each worker."""
    found = re.findall(r"worker (\d) is process (\d+)", serving.picker.log())
    return {int(index): int(pid) for index, pid in found}


async def by_worker(serving: Serving, name: str) -> Counter[int]:
    """Sums of a metric by worker."""
    sums: Counter[int] = Counter()
    for index, value in re.findall(
        rf'^{name}{{worker="(\d)".*}} (\S+)$', await serving.picker.metrics(), re.MULTILINE
    ):
        sums[int(index)] += round(float(value))
    return sums


async def ask_many(serving: Serving, clients: int, each: int) -> list[int]:
    """Statuses of that many clients, one request of each after the other."""

    async def ask(client: int) -> list[int]:
        return [(await serving.chat(f"{client} says {number}"))[0] for number in range(each)]

    found = await asyncio.gather(*(ask(client) for client in range(clients)))
    return [status for statuses in found for status in statuses]


@pytest.mark.envoy
async def test_workers_share_port_load_prefixes_and_pages(tmp_path: Path) -> None:
    async with Serving(
        tmp_path, options=("--workers", str(WORKERS)), concurrency=4, policy=HOLDERS
    ) as serving:
        picker = serving.picker

        async def shared() -> bool:
            before = await by_worker(serving, "epp_decisions_total")
            assert set(await ask_many(serving, 64, 20)) == {200}
            decided = await by_worker(serving, "epp_decisions_total")
            decided.subtract(before)
            return len(+decided) == WORKERS and max(decided.values()) <= 2 * sum(decided.values()) / WORKERS

        # Whatever share Envoy's connections happened to have first, moving them balances it.
        await until(shared)
        await until(lambda: idle(serving))
        assert sum((await by_worker(serving, "epp_late_reports_total")).values()) == 0

        text = "tell me more " * 400
        await serving.chat(text)
        await until(lambda: known(serving))
        for _ in range(8):
            _, body = await serving.chat(text)
            assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

        decisions = [request.decision for request in join(recorded(tmp_path / "records"))]
        assert {int(decision["id"][14:16], 16) for decision in decisions} == set(range(WORKERS))
        for decision in decisions[-20:]:
            async with serving.http.get(f"http://{picker.http}/decisions/{decision['id']}") as answer:
                assert (await answer.json())["id"] == decision["id"]
            verdict = {"correct": True}
            url = f"http://{picker.http}/decisions/{decision['id']}/feedback"
            async with serving.http.post(url, json=verdict) as answer:
                assert answer.status == 202


async def idle(serving: Serving) -> bool:
    in_flight = (await by_worker(serving, "epp_requests_in_flight")).values()
    return len(in_flight) == WORKERS and not any(in_flight)


async def known(serving: Serving) -> bool:
    """Whether all workers know as many prefixes."""
    sizes = [*(await by_worker(serving, "llm_d_epp_prefix_indexer_size")).values()]
    return sizes == sizes[:1] * WORKERS


@pytest.mark.envoy
async def test_dead_and_stopped_workers_are_replaced(tmp_path: Path) -> None:
    listen = {
        "grpc": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "first_token": "127.0.0.1:0",
        "stall_limit_s": 3.0,
    }
    async with Serving(tmp_path, options=("--workers", "3"), concurrency=3, listen=listen) as serving:
        assert set(await ask_many(serving, 12, 5)) == {200}
        before = pids(serving)
        os.kill(before[0], signal.SIGKILL)
        os.kill(before[1], signal.SIGSTOP)

        async def whole() -> bool:
            now = pids(serving)
            told = await by_worker(serving, "epp_cluster_connected")
            return now[0] != before[0] and now[1] != before[1] and len(told) == 3

        await until(whole)
        assert set(await ask_many(serving, 12, 5)) == {200}
        assert pids(serving)[2] == before[2]


@pytest.mark.envoy
async def test_signals_of_a_group_drain_once(tmp_path: Path) -> None:
    async with Serving(tmp_path, options=("--workers", "2"), drain_s=60) as serving:
        async with serving.answering(40) as answer:
            os.killpg(serving.picker.pid, signal.SIGTERM)  # all processes, as systemd and terminals do
            assert "[DONE]" in await answer.text()
        assert await serving.picker.ended() == 0


@pytest.mark.parametrize(
    ("section", "mistake"),
    [
        ("listen", {"transport": "grpcio"}),
        ("listen", {"grpc": "192.0.2.1:1"}),
    ],
)
async def test_a_mistake_in_the_configuration_is_said_once(
    tmp_path: Path, section: str, mistake: dict[str, Any]
) -> None:
    config: dict[str, Any] = {section: {**CONFIG.get(section, {}), **mistake}}
    picker = PickerProcess(tmp_path, options=("--workers", "3"), **config)
    with pytest.raises(EppError):
        await picker.start()
    assert f"{section}.{next(iter(mistake))}" in picker.log()
    assert not re.search(r"Traceback|worker 1|replaced", picker.log())


def seats_of(board: WorkerBoard) -> list[ConnectionBalancer]:
    return [ConnectionBalancer(board, index) for index in range(board.count)]


def test_a_connection_goes_to_the_worker_with_the_least_load() -> None:
    seats = seats_of(WorkerBoard(2))
    assert not seats[0].beat(ready=True)
    assert not seats[0].is_others_turn, "the other is not there yet"
    assert seats[1].beat(ready=False)
    assert seats[1].is_others_turn, "it is not ready"
    assert not seats[1].is_ready
    seats[1].beat(ready=True)
    seats[0].took()
    assert seats[0].is_others_turn
    assert not seats[1].is_others_turn
    seats[1].took()
    assert seats[0].tick({"a": 100}) is None
    assert not seats[1].is_others_turn
    assert seats[0].is_others_turn


def test_where_none_is_ready_all_take_connections() -> None:
    (balancer,) = seats_of(WorkerBoard(1))
    balancer.beat(ready=False)
    assert balancer.is_ready
    assert not balancer.is_others_turn


@pytest.mark.parametrize(
    ("calls", "other", "moved"),
    [
        ({"a": 100, "b": 80}, 0, "a"),
        ({"a": 100}, 0, None),  # the other would have as much
        ({"a": 100, "b": 90}, 180, None),
        ({"a": 60, "b": 50, "c": 10}, 80, None),  # too little to be worth it
        ({"a": 90, "b": 0}, 0, None),
        ({}, 50, None),
    ],
)
def test_a_busy_worker_gives_a_connection_away(calls: dict[str, int], other: int, moved: str | None) -> None:
    balancer, second = seats_of(WorkerBoard(2))
    balancer.beat(ready=True)
    second.beat(ready=True)
    second.tick({"x": other})
    assert balancer.tick(calls) == moved
    doubled = {name: 2 * count for name, count in calls.items()}
    assert balancer.tick(doubled) is None, "the one before has had no time"


def test_reports_are_waited_for_until_all_workers_have_their_requests_ended() -> None:
    board = WorkerBoard(2)
    first, second = seats_of(board)
    second.in_flight(3)
    assert first.in_flight(0) == 3.0
    board.clear(1)
    assert first.in_flight(0) == 0.0


async def test_mail_waits_for_a_busy_worker_and_is_dropped_without_one(tmp_path: Path) -> None:
    boxes = [Mailbox(tmp_path, index, 3) for index in range(2)]
    got: list[bytes] = []
    boxes[1].handlers[b"x"] = got.append
    sent = [str(number).encode() for number in range(200)]
    assert all(boxes[0].send(1, b"x", data) for data in sent), "Linux takes some ten of them"
    assert not boxes[0].send(2, b"x", b"nobody")
    for box in boxes:
        box.listen()
    await until(lambda: len(got) == len(sent))
    assert got == sent
    for box in boxes:
        box.close()


async def test_workers_count_what_waits_at_each_other(tmp_path: Path) -> None:
    clock, group, bindings, running = SystemClock(), Group("p", "gorgo", "k"), list[LateBinding](), []
    boxes = [Mailbox(tmp_path, index, 2) for index in range(2)]
    for box in boxes:
        scheduler = picker_of(prefix=str(box.index), pool=[])
        link = HostLink(box, group, scheduler.datastore, clock)
        bindings.append(LateBinding(scheduler, QueueSection(), lambda _: 0.0))
        link.index_sync.share_queue(bindings[-1])
        box.listen()
        running.append(asyncio.ensure_future(link.run()))
    bindings[0].decide(RequestInfo(), clock.mono_s(), 0.0, flow="a", ttft_slo_s=0.0, held_bytes=10)
    await until(lambda: bindings[1].queue.ahead_of(0) == 1)
    for task in running:
        task.cancel()
        await asyncio.wait([task])
    await until(lambda: bindings[1].queue.ahead_of(0) == 0)
    for box in boxes:
        box.close()


async def test_workers_count_the_places_of_agents_that_others_gave(tmp_path: Path) -> None:
    clock, group, bindings, running = SystemClock(), Group("p", "gorgo", "k"), list[LateBinding](), []
    boxes = [Mailbox(tmp_path, index, 2) for index in range(2)]
    for box in boxes:
        scheduler = picker_of(prefix=str(box.index), pool=[])
        scheduler.set_pool([Endpoint("10.0.0.1:80", kv_capacity_tokens=100_000)], clock.mono_s())
        link = HostLink(box, group, scheduler.datastore, clock)
        section = QueueSection(enabled=True, programs=ProgramsSection(enabled=True))
        bindings.append(LateBinding(scheduler, section, lambda _: 0.0))
        link.index_sync.share_queue(bindings[-1])
        box.listen()
        running.append(asyncio.ensure_future(link.run()))
    request = RequestInfo(prompt_tokens=60_000, program="a", decision_id="a1", api="chat")
    bindings[0].decide(request, clock.mono_s(), 0.0, flow="", ttft_slo_s=0.0, held_bytes=10)
    other = bindings[1].programs
    assert other is not None
    await until(lambda: any(engine.used_tokens >= 60_000 for engine in other.sets.engines.values()))
    for task in running:
        task.cancel()
        await asyncio.wait([task])
    for box in boxes:
        box.close()


async def test_datagrams_that_are_no_messages_are_counted_and_stop_nothing(tmp_path: Path) -> None:
    boxes = [Mailbox(tmp_path, index, 2) for index in range(2)]
    told: Any = Told()
    boxes[1].handlers[b"R"] = RoutedReports(told, lambda _: None, lambda *_: None).take
    link = HostLink(boxes[1], Group("p", "gorgo", "k"), picker_of(prefix="a").datastore, ManualClock())
    link.on_question = lambda question, _: told.calls.append(question)
    for box in boxes:
        box.listen()
    nonsense = [(b"?", b""), (b"S", b"x"), (b"R", b""), (b"R", b"F\xff"), (b"R", b"I\x91\xc0"), (b"Q", b"")]
    nonsense += [(b"Q", b"\x07lmetric"), (b"Q", b"\x00\xff")]
    for kind, data in nonsense:
        assert boxes[0].send(1, kind, data)
    RoutedReports(told, lambda _: 1, lambda to, report: boxes[0].send(to, b"R", report)).first_token(
        "a decision"
    )
    assert boxes[0].send(1, b"Q", b"\x00lmetric")
    await until(lambda: told.calls == ["a decision", "lmetric"])
    assert link.index_sync.counts.ignored == {"unreadable": len(nonsense) - 1, "format": 1}
    for box in boxes:
        box.close()


class Told:
    """Takes reports."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.first_token = self.stored = self.finished = self.calls.append


def test_pages_are_merged_by_family() -> None:
    page = b'# HELP a One.\n# TYPE a gauge\na 1.0\n# HELP b Two.\n# TYPE b counter\nb{name="x} y"} 2.0\nb{name="z"} 3.0\n'
    assert merged({1: page, 0: page}).decode().splitlines() == [
        "# HELP a One.",
        "# TYPE a gauge",
        'a{worker="0"} 1.0',
        'a{worker="1"} 1.0',
        "# HELP b Two.",
        "# TYPE b counter",
        'b{worker="0",name="x} y"} 2.0',
        'b{worker="0",name="z"} 3.0',
        'b{worker="1",name="x} y"} 2.0',
        'b{worker="1",name="z"} 3.0',
    ]
