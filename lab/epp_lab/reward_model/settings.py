"""What the learner is asked to do: the keys of its settings file, and the constants behind them.

Numbers without another word are the paper's ([L], sections 4.1, 4.3.2 and 5.1), which names no decay of the
learning rate: its code has 0.95 after each epoch, and this has none.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.section import NotNegative, Positive, PositiveInt, Section
from epp.policies.reward_model import DEFAULT_FEATURES, FEATURES
from epp_lab.tuner.settings import TunerKeys, TunerSettings

Count = Annotated[int, msgspec.Meta(ge=0)]
Width = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class NetworkKeys(Section, frozen=True):
    """The network and how it is fitted.

    Attributes:
        features: inputs, names of `epp.policies.reward_model.FEATURES`.
        hidden: width of each hidden layer; empty for a linear model, which is solved and not trained.
        learning_rate: of Adam.
        epochs: passes over the data; every round begins with fresh weights.
        min_class_rows: rows of an engine class before the model knows it.
    """

    features: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = DEFAULT_FEATURES
    hidden: Annotated[tuple[Width, ...], msgspec.Meta(max_length=8)] = (128, 128, 128)
    learning_rate: Positive = 3e-4
    epochs: PositiveInt = 20
    min_class_rows: PositiveInt = 50

    def __post_init__(self) -> None:
        """Refuse features that do not exist."""
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown:
            raise ValueError(f"features: {', '.join(unknown)} not known; known are {', '.join(FEATURES)}")


class DataKeys(Section, frozen=True):
    """Which samples are trained on, and when.

    Attributes:
        first: samples before the first training.
        every: new samples before each further one.
        recent: newest samples that are kept (the paper's FIFO).
        replay: older ones that are kept, chosen to differ; 0 for none.
    """

    first: PositiveInt = 5000
    every: PositiveInt = 1000
    recent: PositiveInt = 5000
    replay: Count = 5000


class GateKeys(Section, frozen=True):
    """What a trained model must show before it replaces the one in force.

    Attributes:
        held_out: newest samples, unseen by the model, on which it is judged. Where they overlap too
            little with its choices, the next round holds out as many more, up to three times.
        min_effective: effective samples without which the model is refused; 20 are enough where it
            would save more than half.
        on: false lets every model pass, with its figures.
    """

    held_out: PositiveInt = 1000
    min_effective: Positive = 200.0
    on: bool = True


class GuardKeys(Section, frozen=True):
    """Whether a policy that decides without a trial is to be regretted.

    Attributes:
        on: compare the fleet under a model with the fleet under the heuristic; a trial does so
            itself.
    """

    on: bool = True


class LearnerKeys(Section, frozen=True):
    """The settings file of `epp learn`.

    Attributes:
        reward: ``ttft``, or ``felt``: TTFT, and ITL for every further token that is expected.
        congestion_price: what an uncached token costs those behind it, as a multiple of what it costs
            its own request; 0 as in the paper.
        promotion: ``switchback`` tries the learned policy against the heuristic before it decides;
            ``screen`` lets it decide once a model passed the gate.
        network: the network.
        data: the samples.
        gate: before promotion.
        guard: after it, where there is no trial.
        trial: goal and stages of a trial (docs/tuner.md).
    """

    reward: Literal["ttft", "felt"] = "ttft"
    congestion_price: NotNegative = 2.0
    promotion: Literal["switchback", "screen"] = "switchback"
    network: NetworkKeys = NetworkKeys()
    data: DataKeys = DataKeys()
    gate: GateKeys = GateKeys()
    guard: GuardKeys = GuardKeys()
    trial: TunerKeys = TunerKeys()


class Network(NetworkKeys, frozen=True):
    """The network with its constants.

    Attributes:
        dropout: share of the first two hidden layers that is left out, in training alone.
        batch: rows of a step.
        tail: share of the rows beyond each bound of an input that is known.
    """

    dropout: float = 0.1
    batch: int = 256
    tail: float = 0.001


class Gate(GateKeys, frozen=True):
    """The gate with its constants.

    Attributes:
        worse: rise of the held-out error over the incumbent's that is let pass.
        clip: largest weight of a sample off policy; what would weigh more is predicted instead.
        z: standard errors by which the estimated cost must exceed the logged one to refuse the model.
        least_effective: effective samples that are enough while the incumbent saturates.
    """

    worse: float = 0.02
    clip: float = 5.0
    z: float = 2.0
    least_effective: float = 20.0


class Guard(GuardKeys, frozen=True):
    """The guard with its constants.

    Attributes:
        level: one over the blocks, in the mean, after which a model may go that is just within
            `Goal.fleet_margin`.
        every_s: in each such time the heuristic has a turn, at a random moment,
        rest_s: of so long; 0 for none: then only what it served before the first model is compared with.
    """

    level: float = 0.01
    every_s: float = 7200.0
    rest_s: float = 600.0


class LearnerSettings(LearnerKeys, frozen=True):
    """Everything about the learner's judgement: keys and constants.

    Attributes:
        network: the network.
        gate: before promotion.
        guard: after it, where there is no trial.
        trial: how the learned policy is tried.
        retry_s: after a trial that came to nothing, or a retreat, the next one waits so long.
        late_s: a request without an outcome is waited for so long.
    """

    network: Network = Network()
    gate: Gate = Gate()
    guard: Guard = Guard()
    trial: TunerSettings = TunerSettings()
    retry_s: float = 3600.0
    late_s: float = 300.0

    @property
    def guarded(self) -> bool:
        """Whether models decide without a trial, and somebody watches."""
        return self.promotion == "screen" and self.guard.on


def learner_settings(keys: LearnerKeys) -> LearnerSettings:
    """Return the settings of a file: its keys, and the constants."""
    return msgspec.convert(msgspec.to_builtins(keys), LearnerSettings)
