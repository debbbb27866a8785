"""What of a request, and of its answer, the picker changes besides the destination.

Owns when a body is rewritten: where the picked engine has its own name for the model, and, if the
configuration says so, where a streaming client does not ask for the usage. All else goes on as it came.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.apis.rewrite import rewrite
from epp.apis.rewrite_answer import restorer
from epp.errors import ClientError

if TYPE_CHECKING:
    from epp.extproc.types import HttpRequest, Pick
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Ask

#: APIs with ``stream_options.include_usage``; the others tell the usage of event streams unasked.
USAGE_APIS = frozenset({"openai-chat", "openai-completions"})
#: Fields of the decision's metadata; `epp/envoy/restore_model.lua` acts on the first.
PUBLIC_KEY, SERVED_KEY = "model_public", "model_served"


def rewritten(
    pick: Pick, request: HttpRequest, decision: Decision, ask: Ask, *, inject_usage: bool = False
) -> Pick:
    """The pick with the body that its engine understands.

    With another model name the answer must come uncompressed, so that the public name can be put back.

    Args:
        pick: the destination.
        request: as it came.
        decision: what was decided of it.
        ask: what it asks.
        inject_usage: ask for the usage of event streams.
    """
    public, served = ask.model, decision.served_model
    renamed = bool(public) and served != public
    usage = inject_usage and ask.stream and ask.api in USAGE_APIS
    if not request.body or not (renamed or usage):
        return pick
    try:
        body = rewrite(request.body, model=served if renamed else None, include_usage=usage)
    except ClientError:
        # Bytes that are no text, where no parser of ours looks: the engine's to refuse, and it does.
        return pick
    if not renamed:
        return replace(pick, body=body)
    headers = dict(pick.set_headers)
    if "accept-encoding" in request.headers:
        headers["accept-encoding"] = "identity"
    names = {PUBLIC_KEY: public, SERVED_KEY: served}
    return replace(
        pick,
        body=body,
        set_headers=headers,
        metadata={**pick.metadata, **names},
        rewrite_response=partial(restorer, public),
    )
