"""The learner's memory as bytes: samples and counts as MessagePack, arrays as numbers, models as their files.

Which requests were read is in it too: after a restart nothing counts twice, and what came since is read again
from the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from epp.learn.reward_model.rounds import Learner, Memory
from epp.learn.reward_model.samples import array, plain
from epp.learn.sidecar.feed import State as FeedState  # noqa: TC001  # msgspec reads annotations at run time
from epp.records.model_files import dump_reward_model, parse_reward_model

if TYPE_CHECKING:
    from epp.learn.reward_model.settings import LearnerSettings

#: Logged choices are persisted up to so many rows of inputs, newest first; what is lost costs one round.
_LOG_ROWS = 100_000


class Saved(msgspec.Struct):
    """What is on file.

    Attributes:
        features: that the samples have; of others they teach nothing.
        feed: where the records were read to.
        memory: of the learner.
        incumbent: the model as its file; empty for none.
    """

    features: tuple[str, ...]
    feed: FeedState
    memory: Memory
    incumbent: bytes


def encode(learner: Learner, feed: FeedState) -> bytes:
    """Write a learner's memory."""
    memory, rows = learner.memory, 0
    for kept, entry in enumerate(reversed(memory.log)):  # how many fit
        rows += len(entry.choice.rows)
        if rows > _LOG_ROWS:
            memory = msgspec.structs.replace(memory, log=memory.log[-kept:])
            break
    model = learner.incumbent
    content = b"" if model is None else dump_reward_model(model)
    return _ENCODER.encode(Saved(learner.settings.network.features, feed, memory, content))


def learner_of(saved: Saved, settings: LearnerSettings, source: str) -> Learner:
    """Return the learner whose memory was written to ``source``.

    Raises:
        ConfigError: the model in it is none.
    """
    learner = Learner(settings, memory=saved.memory)
    if saved.incumbent:
        learner.incumbent = parse_reward_model(saved.incumbent, f"{source}: the memory")
    return learner


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)
#: Reads a memory, and raises ValueError where it is none.
decode = msgspec.msgpack.Decoder(Saved, dec_hook=array).decode
