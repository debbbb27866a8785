"""Where a request may go on to: what the picker allows Envoy, and the names by which both know it."""

from __future__ import annotations

#: An engine's answers that say that it has no room: another endpoint may have some.
REFUSALS = (429, 503, 529)
#: An engine's answer that it does not have the model, which may have left it since it was listed.
NO_MODEL = 404
#: Further attempts of a request, after refusals and failed connections together.
MAX_RETRIES = 3
#: Most endpoints that a decision names.
MAX_LISTED = 32
#: Request header of the picker's: no endpoint beside those listed may serve. Envoy removes it.
BOUND_HEADER = "x-epp-bound"
#: Request headers by which Envoy is allowed to retry refusals, and how often; it removes them, too.
RETRY_ON_HEADER, MAX_RETRIES_HEADER = "x-envoy-retry-on", "x-envoy-max-retries"
#: The same on their way to a relay, which is the Envoy that retries then.
RELAYED = {RETRY_ON_HEADER: "x-epp-retry-on", MAX_RETRIES_HEADER: "x-epp-max-retries"}
#: Field of a decision's metadata by which Envoy brings a refused request back, and the header that tells of
#: the refusal.
PUT_BACK_KEY, REFUSED_HEADER = "put_back", "x-epp-refused"
#: Field of the metadata of a decision with several endpoints: any failure brings the request back.
PARTED_KEY = "parted"
