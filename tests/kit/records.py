"""Decisions with all that records hold of them, and recorders that write them, for tests."""

from __future__ import annotations

import contextlib
import io
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from epp import cli
from epp.apis.usage import Usage
from epp.config.schema import Records
from epp.ops.explain import explain
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.prefix_cache.index import PrefixIndex
from epp.records.files import read_records
from epp.records.recorder import FileRecorder
from epp.records.schema import join
from epp.schedule.decision import Outcome, to_record
from epp.schedule.scheduler import Scheduler, SchedulerSettings
from epp.schedule.weights import WeightBook
from epp.signals.datastore import Datastore
from epp.types import Endpoint
from tests.kit.requests import asked, measured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from epp.schedule.decision import Decision
    from epp.types import RequestInfo

HASHER = BlockHasher(b"the secret of the tests")
POOL = tuple(Endpoint(f"10.0.0.{number}:8000", region=f"r{number}") for number in range(3))
WALL_S = 1_700_000_000.0


def recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """Records that a running picker has written by now; it makes their folder with the first of them."""
    return iter(()) if not folder.exists() else read_records(folder)


def ended(folder: Path) -> int:
    """Requests whose outcome is on file by now."""
    return sum(request.outcome is not None for request in join(recorded(folder)))


def prompt_of(seed: int, blocks: int = 40) -> RequestInfo:
    """A prompt of 64-token blocks whose hashes depend on the seed alone: longer ones extend shorter ones."""
    return measured(0, blocks * 64, [seed * 1_000_000 + n for n in range(1, blocks + 1)], 64.0)


def ask_of(seed: int, blocks: int = 40, **fields: Any) -> RequestInfo:
    """A chat request with such a prompt."""
    name = HASHER.export_name(f"session {seed}")
    fields = {"session": name, "affinity_key": name, "api": "openai-chat", **fields}
    return asked(model="m", prompt=prompt_of(seed, blocks), body_bytes=9000, **fields)


def picker_of(policy: str = "gorgo", *, prefix: str = "id", **settings: Any) -> Scheduler:
    """A picker over `POOL`, or another pool."""
    chosen = create(policy, settings.pop("params", None))
    numbers = count()
    learn, pool = settings.pop("learn", None), settings.pop("pool", POOL)
    index = settings.pop("index", PrefixIndex())
    scheduler = Scheduler(
        datastore=Datastore(index),
        policy=chosen,
        balance=create("least-request"),
        weights=WeightBook(policy=policy, specs=chosen.weight_specs, configured={}, bounds={}, source="t"),
        settings=SchedulerSettings(**{"warmup_s": 0.0, **settings}),
        new_id=lambda: f"{prefix}-{next(numbers)}",
        name_block=HASHER.export_id,
        learn=learn,
    )
    scheduler.set_pool(pool, 0.0)
    for number, endpoint in enumerate(pool):
        scheduler.datastore.assume_rtt(endpoint.address, 20.0 * (number + 1))
    return scheduler


def decided(number: int, policy: str = "gorgo", **settings: Any) -> list[tuple[Decision, RequestInfo]]:
    """So many decisions on eight conversations; every second request has ended by the next."""
    scheduler = picker_of(policy, **settings)
    found = []
    for index in range(number):
        ask = ask_of(index % 8, 40 + index // 8)
        decision = scheduler.decide(ask, float(index), WALL_S + index)
        found.append((decision, ask))
        if index % 2:
            scheduler.end(decision.id, "completed", index + 0.5)
    return found


def outcome_of(decision: Decision, **fields: Any) -> Outcome:
    """How it ended: well."""
    values: dict[str, Any] = {
        "id": decision.id,
        "endpoint": decision.endpoint,
        "cause": "completed",
        "status": 200,
        "ttft_ms": 12.5,
        "e2e_ms": 80.25,
        "usage": Usage(2560, 16, 1024),
    }
    return Outcome(**{**values, **fields})


@contextlib.contextmanager
def recorder_to(folder: Path, **settings: Any) -> Iterator[tuple[FileRecorder, list[int]]]:
    """A recorder and what it has dropped; at the end everything is written."""
    dropped: list[int] = []
    options = {name: settings.pop(name) for name in ("file_bytes", "on_restart") if name in settings}
    recorder = FileRecorder(
        folder, settings=Records(**settings), hasher=HASHER, on_drop=dropped.append, **options
    )
    try:
        yield recorder, dropped
    finally:
        recorder.close()


def record_all(folder: Path, requests: list[tuple[Decision, RequestInfo]], **settings: Any) -> None:
    """Record these with their outcomes."""
    with recorder_to(folder, **settings) as (recorder, _):
        for decision, _ in requests:
            recorder.record(decision)
            recorder.record(outcome_of(decision), decision.at_wall_s + 0.1)


def command(*words: object) -> int:
    """Run a command as the command line does, but let its errors through."""
    return cli.run([str(word) for word in words])


def through_json(decision: Decision) -> dict[str, Any]:
    """The record of a decision, as it is read back."""
    record: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(to_record(decision)))
    return record


def explained(decision: Decision) -> str:
    """What people are told of a decision."""
    told = io.StringIO()
    for part in explain(through_json(decision)):
        Console(file=told, width=300).print(part)
    return told.getvalue()
