"""Headers: what clients are told of a decision, and what engines need not see.

The picker writes the metadata (`epp.request.director`) and reads the request's headers (`epp.apis.registry`)
under the same names; a test with a real Envoy holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE
from epp.envoy.relays import SERVED_HEADER

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

DECISION_HEADER = "x-epp-decision-id"
"""Response header that tells a client under which id its request was decided."""
#: The retry protocol's: response header -> field of the decision's metadata.
TOLD = {"x-epp-served-model": "model_served", "x-epp-untried-models": "models_untried"}
#: Response headers: who served, and by which rule the picker refused, which it sets itself.
ENDPOINT_HEADER, REFUSAL_HEADER = "x-epp-endpoint", "x-epp-refusal"
#: Request headers that are the picker's alone.
ASKED = ("x-epp-tried-models", "x-epp-task")


def decision_headers(settings: EnvoySettings) -> list[api.core.HeaderValueOption]:
    """Set the decision's id and, where asked for, the retry protocol's headers and who served."""
    told = {DECISION_HEADER: "decision_id", **(TOLD if settings.served_model_header else {})}
    headers = [
        api.set_header(name, f"%DYNAMIC_METADATA({DECISION_NAMESPACE}:{field})%")
        for name, field in told.items()
    ]
    if settings.endpoint_header:
        served = f"%RESP({SERVED_HEADER})%" if settings.relayed else "%UPSTREAM_REMOTE_ADDRESS%"
        header = api.set_header(ENDPOINT_HEADER, served)
        if settings.federation:  # the Envoy of another region has said it
            header.append_action = api.core.HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT
        headers.append(header)
    return headers
