"""Runs of policies on cells, kept in a folder: what was run once is not run again, and a run may be stopped.

Owns the folder's one file, a line a run. A run is known by everything that it is a function of: the cell, the
fleet, the policy, the seed, and the source of the simulator, the picker and the policy itself, with what it
is made of: a policy that changes does not take the runs of the others with it. One process writes.
"""

from __future__ import annotations

import ast
import hashlib
import multiprocessing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.kept import adding, lines
from epp.policies.registry import POLICIES
from epp.replay.measure import Figures  # noqa: TC001  # msgspec reads the annotation
from epp.replay.simulate import Outcome, Task, run_task
from epp.replay.tune import Tuned, TuningTask, tune

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

PACKAGE = Path(__file__).parent.parent / "epp"
#: What a run is a function of, besides its task, where many policies are run as one.
_SOURCES = (
    "config",
    "decide",
    "policies",
    "prompt",
    "replay",
    "signals",
    "sim",
    "keyed_uniform.py",
    "view.py",
)
#: The same where it is one policy's, whose own modules are added.
_COMMON = ("policies/base.py", *(name for name in _SOURCES if name != "policies"))
_RUNS, _TUNED = "runs.jsonl", "tuned.jsonl"


class _Line(msgspec.Struct, frozen=True):
    key: str
    what: str
    figures: Figures


class _TunedLine(msgspec.Struct, frozen=True):
    key: str
    what: str
    weights: dict[str, float]
    start: float
    best: float
    tried: int


def source_digest(names: Iterable[str] = _SOURCES) -> str:
    """Of files and folders of the package: all that decides what a run comes to, unless others are named."""
    digest = hashlib.sha256()
    for name in names:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def policy_modules(name: str) -> tuple[str, ...]:
    """Files of the package that a policy is made of: its own, and those of other policies that it imports.

    Empty for an oracle, which is part of the simulator.
    """
    if name not in POLICIES:
        return ()
    todo, found = [f"{POLICIES[name].module.rpartition('.')[2]}.py"], set[str]()
    while todo:
        own = f"policies/{todo.pop()}"
        if own not in found:
            found.add(own)
            todo += _imported(PACKAGE / own)
    return tuple(sorted(found))


@cache
def digest_of(name: str) -> str:
    """Of all source that decides what a run of this policy comes to."""
    return source_digest((*_COMMON, *policy_modules(name)))


def _imported(path: Path) -> list[str]:
    """Modules of the policies' package that a file imports from, at run time or for its types."""
    nodes = ast.walk(ast.parse(path.read_text()))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [f"{name.rpartition('.')[2]}.py" for name in names if name.startswith("epp.policies.")]


class Shelf:
    """Results by task.

    Args:
        folder: where they are kept; made when it is not there.
        workers: processes.
        digest: of the source, by the policy's name; ``""`` takes what is there whatever source made it.
        on_done: called with what is going on, runs done and runs to do.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        digest: Callable[[str], str],
        on_done: Callable[[str, int, int], None],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._workers, self._digest, self._on_done = folder, workers, digest, on_done
        self._runs: dict[str, Figures] = {}
        for run in lines(folder / _RUNS, _Line):
            self._runs[run.key] = self._runs[_of_any_source(run.key)] = run.figures
        self._tuned: dict[str, _TunedLine] = {}
        for line in lines(folder / _TUNED, _TunedLine):
            self._tuned[line.key] = self._tuned[_of_any_source(line.key)] = line

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Results in the order of the tasks; columns are not kept."""
        keys = [self._key(task) for task in tasks]
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._runs}

        def keep(key: str, task: Task, outcome: Outcome) -> bytes:
            self._runs[key] = outcome.figures
            what = f"{task.cell.name} | {task.policy.name} | {task.seed}"
            return msgspec.json.encode(_Line(key, what, outcome.figures))

        self._work(_RUNS, "runs", run_task, missing, keep)
        return [Outcome(self._runs[key], {}) for key in keys]

    def has(self, tasks: Sequence[Task]) -> bool:
        """Whether all of them were run."""
        return all(self._key(task) in self._runs for task in tasks)

    def tune(self, tasks: Sequence[TuningTask]) -> list[Tuned]:
        """What each search found, in the order of the tasks."""
        keys = [self._key(task) for task in tasks]
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._tuned}

        def keep(key: str, task: TuningTask, found: Tuned) -> bytes:
            what = f"{task.cell.name} | {task.policy.name}"
            line = _TunedLine(key, what, dict(found.weights), found.start, found.best, found.tried)
            self._tuned[key] = line
            return msgspec.json.encode(line)

        self._work(_TUNED, "searches", tune, missing, keep)
        found = [self._tuned[key] for key in keys]
        return [
            Tuned(task.policy.name, line.weights, line.start, line.best, line.tried)
            for task, line in zip(tasks, found, strict=True)
        ]

    def _work(
        self,
        file: str,
        title: str,
        work: Callable[[Any], Any],
        missing: Mapping[str, Any],
        keep: Callable[[str, Any, Any], bytes],
    ) -> None:
        if not missing:
            return
        context = multiprocessing.get_context("spawn")
        with adding(self._folder / file) as out, context.Pool(self._workers) as pool:
            results = pool.imap(work, missing.values())
            for done, (key, result) in enumerate(zip(missing, results, strict=True), start=1):
                out.write(keep(key, missing[key], result) + b"\n")
                out.flush()
                self._on_done(title, done, len(missing))

    def _key(self, task: Task | TuningTask) -> str:
        policy = task.policy
        parts: list[object] = [type(task).__name__, task.cell, task.fleet, policy.name]
        parts += [sorted(policy.weights.items()), sorted(policy.params.items()), task.seed]
        parts.append(task.budget if isinstance(task, TuningTask) else "")
        return f"{self._digest(policy.name)} {hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


def _of_any_source(key: str) -> str:
    """The key of the same task where the source's digest is ``""``."""
    return f" {key.rpartition(' ')[2]}"


class TimeLimit:
    """The time that rounds of work may take together, each taking as long as the longest so far.

    Attributes:
        limit_s: 0 for as long as it takes.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s, self._clock = limit_s, clock
        self._began_s = self._last_s = clock()
        self._longest_s = 0.0

    @property
    def spent_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._began_s

    def fits_another(self) -> bool:
        """Whether one more round should end in time."""
        return not self.limit_s or self.spent_s + self._longest_s <= self.limit_s

    def ended(self) -> None:
        """A round is over."""
        now_s = self._clock()
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
