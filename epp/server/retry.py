"""Which model answered: what a client needs to go on with another one after a wrong answer.

Owns the response headers of the retry protocol and the fields of metadata that Envoy fills them from
(`epp.envoy.retry`); a picker that sees responses sets them itself. Nothing is kept between attempts: the
client sends back what it was told (`epp.apis.tried`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.schedule.retry import untried_models
from epp.server.rewrite import SERVED_KEY

if TYPE_CHECKING:
    from epp.extproc.types import Pick
    from epp.schedule.decision import Decision

#: Response header: what the engine that answers calls its model.
SERVED_MODEL_HEADER = "x-epp-served-model"
#: Response header: how many models are left that are worth a further attempt (`epp.schedule.retry`).
UNTRIED_HEADER = "x-epp-untried-models"
UNTRIED_KEY = "models_untried"
"""Field of the decision's metadata for `UNTRIED_HEADER`."""
#: What no header carries: Envoy writes it into the response as it is, where lines end and begin headers.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def told(pick: Pick, decision: Decision) -> Pick:
    """The pick with what its answer tells of models; as it is where the request names none.

    A pool that names no models serves any, by the name that the client writes: one that would be more than
    a header's value is not told.
    """
    model = decision.served_model
    if not model or _CONTROL.search(model):
        return pick
    names = {SERVED_MODEL_HEADER: model, UNTRIED_HEADER: str(len(untried_models(decision)))}
    metadata = {SERVED_KEY: model, UNTRIED_KEY: names[UNTRIED_HEADER]}
    return replace(
        pick,
        metadata={**pick.metadata, **metadata},
        response_headers={**pick.response_headers, **names},
    )
