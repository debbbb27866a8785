"""Headers: what clients are told of a decision, and what engines need not see.

The picker writes the metadata (`epp.server.core`) and reads the request's headers (`epp.apis.registry`)
under the same names; a test with a real Envoy holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

DECISION_HEADER = "x-epp-decision-id"
"""Response header that tells a client under which id its request was decided."""
#: The retry protocol's: response header -> field of the decision's metadata.
TOLD = {"x-epp-served-model": "model_served", "x-epp-untried-models": "models_untried"}
#: Request headers that are the picker's alone.
ASKED = ("x-epp-tried-models", "x-epp-task")


def decision_headers(settings: EnvoySettings) -> list[api.core.HeaderValueOption]:
    """Set the decision's id and, where asked for, the retry protocol's headers, where a decision has them."""
    told = {DECISION_HEADER: "decision_id", **(TOLD if settings.served_model_header else {})}
    return [
        api.set_header(name, f"%DYNAMIC_METADATA({DECISION_NAMESPACE}:{field})%")
        for name, field in told.items()
    ]
