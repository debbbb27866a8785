"""The retry protocol's headers: what of the decision's metadata clients are told, what engines need not see.

The picker writes the metadata (`epp.server.core`) and reads the request's headers (`epp.apis.tried`)
under the same names; a test with a real Envoy holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

#: Response header -> field of the decision's metadata.
TOLD = {"x-epp-served-model": "model_served", "x-epp-untried-models": "models_untried"}
#: Request headers that are the picker's alone.
ASKED = ("x-epp-tried-models", "x-epp-task")


def retry_headers(settings: EnvoySettings) -> list[api.core.HeaderValueOption]:
    """The response headers, where the settings ask for them; none where a decision tells no model."""
    if not settings.served_model_header:
        return []
    return [
        api.core.HeaderValueOption(
            header=api.core.HeaderValue(key=name, value=f"%DYNAMIC_METADATA({DECISION_NAMESPACE}:{field})%"),
            append_action=api.core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, field in TOLD.items()
    ]
