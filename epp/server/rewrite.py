"""What of a request, and of its answer, the picker changes besides the destination.

Owns when a body is rewritten: where the picked engine has its own name for the model, and, if the
configuration says so, where a streaming client does not ask for the usage. All else goes on as it came.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from epp.apis.rewrite import rewrite
from epp.apis.rewrite_answer import restorer
from epp.errors import ClientError

if TYPE_CHECKING:
    from epp.extproc.types import HttpRequest, Pick
    from epp.schedule.decision import Decision

#: APIs with ``stream_options.include_usage``; the others tell the usage of event streams unasked.
USAGE_APIS = frozenset({"openai-chat", "openai-completions"})
#: Fields of the decision's metadata; `epp/envoy/restore_model.lua` acts on the first.
PUBLIC_KEY, SERVED_KEY = "model_public", "model_served"


def rewrite_bodies(
    pick: Pick, request: HttpRequest, decision: Decision, *, inject_usage: bool = False
) -> None:
    """Let a pick carry the body that its engine understands.

    With another model name the answer must come uncompressed, so that the public name can be put back.

    Args:
        pick: the destination; changed.
        request: as it came.
        decision: what was decided of it.
        inject_usage: ask for the usage of event streams.
    """
    info, served = decision.request, decision.served_model
    renamed = bool(info.model) and served != info.model
    usage = inject_usage and info.stream and info.api in USAGE_APIS
    if not request.body or not (renamed or usage):
        return
    try:
        pick.body = rewrite(request.body, model=served if renamed else None, include_usage=usage)
    except ClientError:
        return  # bytes that are no text, where no parser of ours looks: the engine refuses them
    if renamed:
        if "accept-encoding" in request.headers:
            pick.set_headers["accept-encoding"] = "identity"
        pick.metadata |= {PUBLIC_KEY: info.model, SERVED_KEY: served}
        pick.rewrite_response = partial(restorer, info.model)
