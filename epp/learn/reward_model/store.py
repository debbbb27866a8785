"""The learner's memory as bytes: samples, models and counts as MessagePack, arrays as numbers.

Owns the form. Which requests were read is in it too: after a restart nothing counts twice, and what came
since is read again from the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.config.reward_model import dump_reward_model, parse_reward_model
from epp.errors import ConfigError
from epp.learn.reward_model.guard import GuardState  # noqa: TC001  # msgspec reads annotations at run time
from epp.learn.reward_model.monitors import Frozen  # noqa: TC001
from epp.learn.reward_model.pools import Pools
from epp.learn.reward_model.rounds import Memory, blank
from epp.learn.reward_model.samples import Logged, Sample  # noqa: TC001
from epp.learn.sidecar.feed import State as FeedState  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.learn.reward_model.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel

#: Logged choices are persisted up to so many rows of inputs, newest first; what is lost costs one round.
_LOGGED_ROWS = 100_000


class Saved(msgspec.Struct):
    """What is on file.

    Attributes:
        features: that the samples have; of others they teach nothing.
        feed: where the records were read to.
        recent, older: samples of the pools.
        incumbent, newest: models as their files; empty for none.

    The other fields are those of `epp.learn.reward_model.rounds.Memory`.
    """

    features: tuple[str, ...]
    feed: FeedState
    recent: list[Sample]
    older: list[Sample]
    logged: list[Logged]
    frozen: list[Frozen]
    incumbent: bytes
    newest: bytes
    guard: GuardState
    seen: int
    since: int
    rounds: int
    passed: int
    silent: int
    short: int


_COUNTS = ("seen", "since", "rounds", "passed", "silent", "short")


def saved_of(memory: Memory, feed: FeedState, settings: LearnerSettings) -> Saved:
    """What is to be written of a memory."""
    return Saved(
        features=settings.network.features,
        feed=feed,
        recent=list(memory.pools.recent),
        older=memory.pools.older,
        logged=_newest(memory.logged),
        frozen=memory.frozen,
        incumbent=_dumped(memory.incumbent),
        newest=_dumped(memory.newest),
        guard=memory.guard,
        **{name: getattr(memory, name) for name in _COUNTS},
    )


def memory_of(saved: Saved, settings: LearnerSettings) -> Memory:
    """The memory that was written.

    Raises:
        ValueError: a model in it is none.
    """
    memory = blank(settings)
    memory.pools = Pools(settings.data.recent, settings.data.replay, saved.recent, saved.older)
    memory.logged.extend(saved.logged)
    memory.frozen, memory.guard = saved.frozen, saved.guard
    memory.incumbent, memory.newest = _parsed(saved.incumbent), _parsed(saved.newest)
    for name in _COUNTS:
        setattr(memory, name, getattr(saved, name))
    return memory


def encode(saved: Saved) -> bytes:
    """A memory as bytes."""
    return _ENCODER.encode(saved)


def decode(content: bytes) -> Saved:
    """A memory from its bytes.

    Raises:
        ValueError: it is none.
    """
    return _DECODER.decode(content)


def _newest(logged: Iterable[Logged]) -> list[Logged]:
    kept: list[Logged] = []
    rows = 0
    for entry in reversed(list(logged)):
        rows += len(entry.rows)
        if rows > _LOGGED_ROWS:
            break
        kept.append(entry)
    return kept[::-1]


def _dumped(model: RewardModel | None) -> bytes:
    return b"" if model is None else dump_reward_model(model)


def _parsed(content: bytes) -> RewardModel | None:
    try:
        return parse_reward_model(content, "the memory") if content else None
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, np.float64).tobytes()
    raise NotImplementedError(type(value))


def _array(kind: Any, value: Any) -> Any:
    if kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray:
        shape, data = value
        return np.frombuffer(data, np.float64).reshape(shape)
    raise NotImplementedError(kind)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder(Saved, dec_hook=_array)
