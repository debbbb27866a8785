"""What a policy's own draw was among, so that the chance of every endpoint can be told afterwards.

The costs of a policy that draws hold what came of the draw. Such a policy has a static method
``drawn(ranking, weights, params)`` that gives back what was there before it, from what records hold; None
where nothing was drawn. Policies without one draw nothing. Asked off the request path alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Softmax:
    """Any, with chances in proportion to ``exp(-costs / width)`` among those that may be chosen.

    Attributes:
        costs: before the draw.
        width: above 0.
    """

    costs: NDArray[np.float64]
    width: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The less loaded of two drawn evenly from all; where neither may be chosen, any that may be, evenly."""

    load: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Explored:
    """With chance ``explore`` one drawn evenly from all, else the cheapest.

    Attributes:
        costs: before the draw.
        explore: chance of a draw.
    """

    costs: NDArray[np.float64]
    explore: float


Drawn = Softmax | Pair | Explored
