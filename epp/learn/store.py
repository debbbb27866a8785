"""The learner's memory on disk: two files written in turn, so that whatever is torn, the other one is whole.

Owns the form: a digest of all that follows, and a NumPy archive without pickled objects: samples as columns,
models as their files, the rest as JSON. Which requests were read is in it too: after a restart nothing counts
twice, and what came since is read again from the records.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from epp.config.reward_model import dump_reward_model, parse_reward_model
from epp.errors import ConfigError, EppError
from epp.learner.guard import GuardState
from epp.learner.monitors import Frozen
from epp.learner.pools import Pools
from epp.learner.rounds import Memory, blank
from epp.learner.samples import Logged, Sample
from epp.tune.feed import State as FeedState  # noqa: TC001  # msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Reversible, Sequence

    from numpy.typing import NDArray

    from epp.learn.places import ModelPlaces
    from epp.learner.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel
    from epp.tune.disk import Disk

    Arrays = dict[str, NDArray[Any]]

FORMAT = 1
_DIGEST_BYTES = 16
#: Logged choices are persisted up to so many rows of inputs, newest first; what is lost costs one round.
_LOGGED_ROWS = 100_000
_NUMBERS = ("at_wall_s", "ttft_ms", "itl_ms", "waited_ms", "failed", "output_tokens")


class _OtherVersionError(ValueError):
    """A whole memory that another version of the program wrote."""


class _Format(msgspec.Struct):
    format: int


class _Meta(msgspec.Struct):
    format: int
    count: int
    features: list[str]
    classes: list[str]
    seen: int
    since: int
    rounds: int
    passed: int
    silent: int
    short: int
    frozen: list[tuple[int, int, float]]
    feed: FeedState
    guard: GuardState = msgspec.field(default_factory=GuardState)


class MemoryStore:
    """Keeps a learner's memory.

    Args:
        places: where.
        disk: the file system.
        settings: of the learner; a memory of other features is not used.
        tell: takes sentences for the log.
    """

    def __init__(
        self, places: ModelPlaces, disk: Disk, settings: LearnerSettings, tell: Callable[[str], None]
    ) -> None:
        self._places, self._disk, self._settings, self._tell = places, disk, settings, tell
        self._count = 0
        self._slot = 0

    def load(self) -> tuple[Memory, FeedState] | None:
        """The newest whole memory, and how far the records were read; None when there is none.

        Raises:
            EppError: one of the files is there and cannot be read, or is whole and of another version. It may
                be the newer one: what it says would be lost for good.
        """
        best: tuple[int, Memory, FeedState] | None = None
        for slot, path in enumerate(self._places.states):
            try:
                content = self._disk.read_whole(path)
            except OSError as error:
                problem = f"{path}: {error.strerror or error}; the learner's memory must be readable"
                raise EppError(problem) from error
            if content is None:
                continue
            try:
                count, memory, feed = _opened(content, self._settings)
            except _OtherVersionError as error:
                both = " and ".join(path.name for path in self._places.states)
                raise EppError(
                    f"{path}: {error}; start the version of epp that wrote it, "
                    f"or move {both} away to begin anew"
                ) from error
            except ValueError as error:
                self._tell(f"{path}: {error}; not used")
                continue
            if best is None or count > best[0]:
                best = (count, memory, feed)
                self._count, self._slot = count, 1 - slot
        return None if best is None else best[1:]

    def save(self, memory: Memory, feed: FeedState) -> None:
        """Write the memory over the older of the two files.

        Raises:
            OSError: it is not on disk; the last one still is.
        """
        content = _packed(memory, feed, self._count + 1, self._settings)
        self._disk.replace(self._places.states[self._slot], content)
        self._count += 1
        self._slot = 1 - self._slot


def _packed(memory: Memory, feed: FeedState, count: int, settings: LearnerSettings) -> bytes:
    classes: dict[str, int] = {}
    arrays: Arrays = {}
    frozen = [sample for left in memory.frozen for sample in left.samples]
    held = _bounded(memory.logged)
    groups = {
        "recent": list(memory.pools.recent),
        "older": memory.pools.older,
        "frozen": frozen,
        "logged": [entry.sample for entry in held],
    }
    for name, samples in groups.items():
        arrays |= _columns(name, samples, classes, len(settings.network.features))
    arrays |= _choices(held, classes, len(settings.network.features))
    for name, model in (("incumbent", memory.incumbent), ("newest", memory.newest)):
        content = b"" if model is None else dump_reward_model(model)
        arrays[name] = np.frombuffer(content, np.uint8)
    meta = _Meta(
        format=FORMAT,
        count=count,
        features=list(settings.network.features),
        classes=list(classes),
        seen=memory.seen,
        since=memory.since,
        rounds=memory.rounds,
        passed=memory.passed,
        silent=memory.silent,
        short=memory.short,
        frozen=[(left.round, len(left.samples), left.error_ms) for left in memory.frozen],
        feed=feed,
        guard=memory.guard,
    )
    arrays["meta"] = np.frombuffer(msgspec.json.encode(meta), np.uint8)
    file = io.BytesIO()
    plain: Any = arrays
    np.savez_compressed(file, **plain)
    content = file.getvalue()
    return xxhash.xxh3_64_hexdigest(content).encode() + content


def _bounded(logged: Reversible[Logged]) -> list[Logged]:
    kept: list[Logged] = []
    rows = 0
    for entry in reversed(logged):
        rows += len(entry.rows)
        if rows > _LOGGED_ROWS:
            break
        kept.append(entry)
    return kept[::-1]


def _columns(name: str, samples: Sequence[Sample], classes: dict[str, int], width: int) -> Arrays:
    rows = np.array([sample.row for sample in samples], np.float64).reshape(len(samples), width)
    numbers = [[float(getattr(sample, key)) for key in _NUMBERS] for sample in samples]
    return {
        f"{name}.rows": rows,
        f"{name}.numbers": np.array(numbers, np.float64).reshape(len(samples), len(_NUMBERS)),
        f"{name}.classes": np.array(
            [classes.setdefault(sample.engine_class, len(classes)) for sample in samples], np.int32
        ),
    }


def _choices(held: Sequence[Logged], classes: dict[str, int], width: int) -> Arrays:
    rows = [entry.rows for entry in held]
    names = [classes.setdefault(name, len(classes)) for entry in held for name in entry.engine_classes]
    chances = [np.stack([entry.chances, entry.heuristic]) for entry in held]
    return {
        "choices.counts": np.array([len(entry.rows) for entry in held], np.int32),
        "choices.rows": np.concatenate(rows) if rows else np.zeros((0, width)),
        "choices.classes": np.array(names, np.int32),
        "choices.chances": np.concatenate(chances, axis=1) if chances else np.zeros((2, 0)),
        "choices.chosen": np.array([entry.chosen for entry in held], np.int32),
        "choices.served": np.array([entry.served_pick for entry in held], np.bool_),
        "choices.learned": np.array([entry.learned for entry in held], np.bool_),
    }


def _opened(content: bytes, settings: LearnerSettings) -> tuple[int, Memory, FeedState]:
    """Count and content of an archive.

    Raises:
        _OtherVersionError: of another version.
        ValueError: torn, changed, or of other features.
    """
    digest, archive = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if xxhash.xxh3_64_hexdigest(archive).encode() != digest:
        raise ValueError("its digest does not fit: torn, or changed by hand")
    with np.load(io.BytesIO(archive), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    try:
        told = arrays.pop("meta").tobytes()
        written = msgspec.json.decode(told, type=_Format).format  # first: another one has other fields
        if written != FORMAT:
            raise _OtherVersionError(f"the memory has format {written}, this program reads {FORMAT}")
        meta = msgspec.json.decode(told, type=_Meta)
    except (KeyError, msgspec.MsgspecError) as error:
        raise _OtherVersionError(f"of another version: {error}") from error
    if tuple(meta.features) != settings.network.features:
        raise ValueError("it is of other features")
    return meta.count, _memory(arrays, meta, settings), meta.feed


def _memory(arrays: Arrays, meta: _Meta, settings: LearnerSettings) -> Memory:
    memory = blank(settings)
    recent, older = (_samples(name, arrays, meta.classes) for name in ("recent", "older"))
    memory.pools = Pools(settings.data.recent, settings.data.replay, recent, older)
    memory.logged.extend(_logged(arrays, meta.classes))
    memory.frozen = _frozen(_samples("frozen", arrays, meta.classes), meta.frozen)
    memory.incumbent, memory.newest = (_model(arrays[name]) for name in ("incumbent", "newest"))
    memory.seen, memory.since, memory.rounds = meta.seen, meta.since, meta.rounds
    memory.passed, memory.silent, memory.short = meta.passed, meta.silent, meta.short
    memory.guard = meta.guard
    return memory


def _samples(name: str, arrays: Arrays, classes: Sequence[str]) -> list[Sample]:
    samples = []
    numbers = arrays[f"{name}.numbers"].tolist()
    names = [classes[index] for index in arrays[f"{name}.classes"].tolist()]
    for row, engine_class, values in zip(arrays[f"{name}.rows"], names, numbers, strict=True):
        told = dict(zip(_NUMBERS, values, strict=True))
        failed = bool(told.pop("failed"))
        samples.append(Sample(row=row, engine_class=engine_class, failed=failed, **told))
    return samples


def _logged(arrays: Arrays, classes: Sequence[str]) -> list[Logged]:
    held, at = [], 0
    columns = zip(
        _samples("logged", arrays, classes),
        arrays["choices.counts"].tolist(),
        arrays["choices.chosen"].tolist(),
        arrays["choices.served"].tolist(),
        arrays["choices.learned"].tolist(),
        strict=True,
    )
    for sample, count, chosen, served, learned in columns:
        part = slice(at, at + count)
        at += count
        names = tuple(classes[index] for index in arrays["choices.classes"][part].tolist())
        rows, (chances, heuristic) = arrays["choices.rows"][part], arrays["choices.chances"][:, part]
        held.append(Logged(sample, rows, names, chances, heuristic, chosen, served, learned))
    return held


def _frozen(samples: Sequence[Sample], told: Sequence[tuple[int, int, float]]) -> list[Frozen]:
    left, at = [], 0
    for number, count, error_ms in told:
        left.append(Frozen(number, tuple(samples[at : at + count]), error_ms))
        at += count
    return left


def _model(content: NDArray[np.uint8]) -> RewardModel | None:
    if not len(content):
        return None
    try:
        return parse_reward_model(content.tobytes(), "the memory")
    except ConfigError as error:
        raise ValueError(str(error)) from error
