"""Checks of the running picker by its readiness and its metrics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.ops.doctor.context import ENOUGH, advice, error, note, warning
from epp.request.response_sampling import section_of, share_of

if TYPE_CHECKING:
    from epp.ops.doctor.context import Context, Findings

#: No region of the earth is farther over fibre; a satellite link is.
FAR_S = 1.0
#: Endpoints of one region differ by less, and by no more than this factor.
SAME_REGION_S, SAME_REGION_FACTOR = 0.02, 5.0
#: Engines that had less than this share of the cached tokens expected of them do not cache as is believed.
LOW_HITS = 0.5

#: What to do about a reason of `/readyz`.
_WHEN_READY = {
    "no endpoints": "list some in pool.file, which it follows; its log says why, if there are some",
    "dead tasks": "its log says what they died of; start it again",
    "draining": "it is about to leave: look at the one that comes after it",
    "rebuilding": "ask again in some seconds",
    "": "do what the reason says; its log tells more",
}


def reachable(context: Context) -> Findings:
    """Check that the picker answers, is ready and shows metrics."""
    url, ready = context.picker_url, context.ready
    if ready is None:
        yield note("listen.http has port 0: tell where it listens with --picker, to look at it")
        return
    if ready.status == 0:
        yield error(
            f"the picker does not answer at {url}: {ready.text}",
            "Envoy balances without it",
            "start it, or say where it listens with --picker",
        )
        return
    if ready.status != 200:
        yield error(
            f"the picker is not ready: {ready.text.strip()}",
            "it is sent no requests where readiness counts",
            next(fix for words, fix in _WHEN_READY.items() if words in ready.text),
        )
    if context.metrics is None:
        yield error(
            f"{url}/metrics is not the page of a picker",
            "nothing can be said of it",
            "say where the picker listens with --picker",
        )


def files(context: Context) -> Findings:
    """Check the files that the picker follows."""
    config, states = context.config, context.page.by("epp_file_ok", "file")
    for file, state in states.items():
        if not state:
            yield error(
                f"the {file} file is gone or cannot be used",
                "what is written there has no effect: an older content is in force, or none",
                "the picker's log names file, key and fix",
            )
    if good := [file for file, value in states.items() if value]:
        yield note(f"files in force: {', '.join(good)}")
    named = {
        "weights": config.weights_file,
        "overrides": config.overrides_file,
        "capability": config.capability.file,
        "model": config.policy.model_file,
    }
    if missing := [f"{file} ({path})" for file, path in named.items() if path and file not in states]:
        yield note(f"files that are not there, so that nothing of them counts: {', '.join(missing)}")
    if weights := context.page.by("epp_weight", "name", arm="incumbent"):
        told = ", ".join(f"{name} {value:g}" for name, value in weights.items())
        yield note(f"weights in force: {told}")
    if not config.prefix.secret_file:
        yield note(
            "prefix.secret_file is not set: after a restart conversations move, and nothing can be restored"
        )


def token_counts(context: Context) -> Findings:
    """Note what counts the tokens of each model's prompts."""
    tokenizer, estimate = (
        ", ".join(context.page.by("epp_model_tokens_counted", "model_name", by=by))
        for by in ("tokenizer", "estimate")
    )
    if tokenizer:
        yield note(f"tokens are counted by the model's tokenizer: {tokenizer}")
    if estimate:
        yield note(f"tokens are estimated, the picker's log says why: {estimate}")


#: What to do where the events of an engine are not believed.
_ABOUT_EVENTS = {
    "unheard": "start it with KV events, and look whether kv_events.address is where it publishes",
    "lost": "give it a replay socket and name it in kv_events.replay_address",
    "deaf": "look whether kv_events.address is this engine's, and whether the network lets it through",
    "wrong": "look whether the tokenizer and the chat template are the engine's (docs/tokenizers.md)",
}


def kv_events(context: Context) -> Findings:
    """Check that engines' events are heard and believed, and that prompts can be looked up in them."""
    if not context.config.kv_events.enabled:
        return
    if estimated := ", ".join(context.page.by("epp_model_tokens_counted", "model_name", by="estimate")):
        yield warning(
            f"prompts for {estimated} cannot be looked up in engines' events: their tokens are not known",
            "what was sent is the estimate of what their engines hold, as without events",
            "give these models a tokenizer (docs/tokenizers.md)",
        )
    for problem, fix in _ABOUT_EVENTS.items():
        if named := ", ".join(context.page.by("epp_kv_events_believed", "endpoint", problem=problem)):
            yield warning(
                f"KV events of {named} are not believed: {problem}",
                "what was sent is the estimate of what they hold, as without events",
                fix,
            )


def endpoints(context: Context) -> Findings:
    """Check that the picker knows the pool and can send to it."""
    ejected = context.page.by("epp_endpoint_unavailable", "endpoint", reason="ejected")
    if context.config.pool.kubernetes is not None:
        yield note(f"{len(ejected)} endpoints from the cluster, as the picker tells them")
    if missing := sorted(context.endpoints.keys() - ejected.keys()):
        yield error(
            f"the picker does not know {', '.join(missing)} of the endpoints file",
            "these get no requests",
            "does the picker run with this configuration, and can it read the file?",
        )
    if out := sorted(address for address, value in ejected.items() if value):
        yield error(
            f"ejected: {', '.join(out)}",
            "the others carry their load",
            f"ask {context.config.probe.path} of them from where the picker runs",
        )
    if context.page.total("epp_health_panicking"):
        yield error(
            "so many endpoints fail that ejections are ignored",
            "requests are sent to endpoints that do not answer probes",
            "look at the network between picker and endpoints",
        )


def peers(context: Context) -> Findings:
    """Check that the picker hears the others of its pool, and that they fit."""
    page = context.page
    if not context.config.nats.url:
        return
    if not page.total("epp_cluster_connected"):
        yield error(
            "NATS (nats.url) cannot be reached",
            "this picker decides without the others",
            "the picker's log says why",
        )
        return
    for result, count in page.by("epp_cluster_messages_total", "result").items():
        reason = result.removeprefix("ignored: ")
        if reason not in (result, "a lead that is over", "unproven") and count:
            yield warning(
                f"{count:.0f} messages of other pickers were ignored: {reason}",
                "they are not heard",
                "give all pickers of a pool the same policy, prefix.secret_file and prefix.block_bytes",
            )
    leads = "; this one leads" if page.total("epp_cluster_leading") else ""
    yield note(f"other pickers of the pool: {page.total('epp_cluster_peers'):.0f}{leads}")


def freshness(context: Context) -> Findings:
    """Check that the picker has engines' metrics, and no old ones."""
    scrape, page = context.config.scrape, context.page
    ages = page.by("epp_endpoint_engine_age_seconds", "endpoint")
    known = (
        context.endpoints.keys() & page.by("epp_endpoint_unavailable", "endpoint", reason="ejected").keys()
    )
    old = sorted(a for a in ages.keys() & context.endpoints.keys() if ages[a] > scrape.stale_after_s)
    never = sorted(known - ages.keys()) if scrape.interval_s else []
    if old or never:
        yield warning(
            f"the picker has no fresh metrics of {', '.join(old + never)}",
            "their queue and cache usage count as unknown",
            'see what is said of the engines, and epp_endpoint_events_total{event="scrape-failed"}',
        )


def round_trips(context: Context) -> Findings:
    """Check the measured RTT of each endpoint against the network and the pool."""
    rtts = context.page.by("epp_endpoint_rtt_seconds", "endpoint")
    if unknown := sorted(context.endpoints.keys() - rtts.keys()):
        yield warning(
            f"the RTT to {', '.join(unknown)} is not known",
            "they count as far as the farthest",
            "probes need a warm connection: keep-alive longer than probe.interval_s; or state rtt_ms",
        )
    for address, rtt_s in sorted(rtts.items()):
        spec = context.endpoints.get(address)
        stated_ms = spec.rtt_ms if spec is not None else None
        if rtt_s > FAR_S:
            yield warning(
                f"the RTT to {address} is {rtt_s * 1e3:.0f} ms",
                "no network takes that long: the endpoint answers probes late, and is priced as far away",
                "let probe.path be something that the engine answers while it is busy",
            )
        elif stated_ms and not stated_ms / 3 <= rtt_s * 1e3 <= stated_ms * 3:
            yield advice(
                f"the RTT to {address} is {rtt_s * 1e3:.1f} ms, stated were {stated_ms:g} ms",
                "the statement is used whenever the measurement is missing",
                "correct rtt_ms of the endpoint, or drop it",
            )
    if rtts:
        low_s, high_s = min(rtts.values()), max(rtts.values())
        yield note(f"RTTs from {low_s * 1e3:.1f} to {high_s * 1e3:.1f} ms")


def regions(context: Context) -> Findings:
    """Check that endpoints of one region are about as far."""
    by_region: dict[str, list[float]] = {}
    for address, rtt_s in context.page.by("epp_endpoint_rtt_seconds", "endpoint").items():
        if address in context.endpoints and context.endpoints[address].region:
            by_region.setdefault(context.endpoints[address].region, []).append(rtt_s)
    for region, values in by_region.items():
        low_s, high_s = min(values), max(values)
        if high_s - low_s > SAME_REGION_S and high_s > SAME_REGION_FACTOR * low_s:
            yield warning(
                f"RTTs to region {region} go from {low_s * 1e3:.1f} to {high_s * 1e3:.1f} ms",
                "either an endpoint is labelled with the wrong region, or one answers probes late",
                "correct its region, or look at its load",
            )


def faults(context: Context) -> Findings:
    """Check what the picker counts of its own failures."""
    page = context.page
    if dropped := page.total("epp_records_dropped_total"):
        yield warning(
            f"{dropped:.0f} records were lost",
            "nothing can be learned of these requests",
            "look at the disk of the folder of records",
        )
    if restarts := page.total("epp_faults_total", part="recorder"):
        yield error(
            f"the thread that writes records failed {restarts:.0f} times and was started again",
            "records were lost: nothing can be learned of these requests",
            "the log holds the traceback; please report it",
        )
    if restarts := page.total("epp_faults_total", part="task"):
        yield error(
            f"tasks that work with other pickers failed {restarts:.0f} times and were started again",
            "meanwhile this picker decided alone",
            "the log holds the traceback; please report it",
        )
    if failed := page.total("epp_faults_total", part="stream"):
        yield error(
            f"{failed:.0f} streams failed by a fault of the picker",
            "these requests went on unpicked, or failed",
            "the log holds the traceback; please report it",
        )


def held_turns(context: Context) -> Findings:
    """Check that callers wait for the turns of agents that are held."""
    held, left = (context.page.total("epp_program_turns_total", how=how) for how in ("held", "left"))
    if left > 0.05 * held:
        yield warning(
            f"of {held:.0f} turns of agents that were held, callers gave up {left:.0f}",
            "where no caller waits, turns are not held for ten minutes at a time, which gains nothing",
            "let clients, gateways and routes wait for queue.programs.longest_hold_s, or turn it off",
        )


def ends(context: Context) -> Findings:
    """Check that reservations end by a request's end and not by age."""
    page = context.page
    expired = page.total("epp_leases_lost_total", reason="expired")
    if page.decisions and expired > 0.01 * page.decisions:
        yield warning(
            f"{expired:.0f} of {page.decisions:.0f} requests never ended for the picker",
            "load is overestimated where ends are missing",
            "let Envoy report ends (access log to the picker)",
        )


def cache_belief(context: Context) -> Findings:
    """Check that caches hold about what the prefix index says."""
    page = context.page
    prompt, expected, reported = (
        page.total("epp_cache_tokens_total", kind=kind) for kind in ("prompt", "expected", "reported")
    )
    if page.total("epp_usage_total", known="cached_tokens") >= ENOUGH and expected - reported > 0.25 * prompt:
        yield warning(
            f"{expected / prompt:.0%} of prompts were expected in caches, {reported / prompt:.0%} were there",
            "requests are sent after caches that are gone",
            "state kv_capacity_tokens of the endpoints",
        )


def reports(context: Context) -> Findings:
    """Check that Envoy's reports and first tokens arrive and belong to decisions."""
    page = context.page
    results = page.by("epp_reports_total", "result")
    malformed, failed = results.get("malformed", 0.0), results.get("failed", 0.0)
    if malformed or failed:
        yield warning(
            f"reports: {malformed:.0f} not readable, {failed:.0f} failed",
            "the outcomes of these requests are not known",
            "is something else than Envoy sending to these listeners?",
        )
    if page.decisions and not page.total("llm_d_epp_request_ttft_seconds_count"):
        yield warning(
            f"of {page.decisions:.0f} requests the first token of none was seen",
            "TTFT is not measured, and uncached tokens count as pending until a request ends",
            "render Envoy's configuration with `epp envoy render`, or let responses pass the picker",
        )
    late = page.total("epp_late_reports_total")
    if page.decisions and late > 0.1 * page.decisions:
        yield warning(
            f"{late:.0f} reports were on decisions that the picker does not know",
            "another picker misses them",
            "let every Envoy report to the picker that it asks",
        )


def cached_counts(context: Context) -> Findings:
    """Note how many answers told their cached tokens."""
    known = context.page.by("epp_usage_total", "known")
    if sum(known.values()) >= ENOUGH:
        share = known.get("cached_tokens", 0.0) / sum(known.values())
        yield note(f"{share:.0%} of answers told their cached tokens")


def hit_ratios(context: Context) -> Findings:
    """Check that each engine has about the cached tokens expected of it."""
    ratios = context.page.by("epp_endpoint_hit_ratio", "endpoint")
    low = sorted(
        address for address in ratios.keys() & context.endpoints.keys() if ratios[address] < LOW_HITS
    )
    if low and context.page.decisions:
        told = ", ".join(f"{address} {ratios[address]:.0%}" for address in low)
        yield warning(
            f"of the cached tokens expected of them engines had: {told}",
            "requests are sent after caches that are gone, or never were",
            "is prefix caching on there (see what is said of the engines)? does somebody else fill the cache?"
            " is kv_capacity_tokens larger than the cache, or does prefix.block_bytes not fit the model?",
        )


def speeds(context: Context) -> Findings:
    """Check the speeds learned of engines, and whether one is slower than its equals."""
    at_bound, measured = (_classes(context, state) for state in ("at-bound", "measured"))
    if at_bound:
        yield warning(
            f"what was measured of engine class {at_bound} fits no engine",
            "times to first token and to the end are predicted wrongly, and gorgo-ms prices by them",
            "name the class after the hardware (l40s, h100, a30, v100) if it is one of these; look at the"
            " RTTs and at what stands between picker and engine",
        )
    if measured:
        yield note(f"speeds are measured of engine class {measured}")
    factors = context.page.by("epp_endpoint_slowness", "endpoint")
    if slow := [f"{address} {factor:.1f} times" for address, factor in sorted(factors.items()) if factor > 1]:
        yield advice(
            f"slower than their equals: {', '.join(slow)}",
            "they are priced by it, but do less than they are paid for",
            "look at their GPU (clocks, heat, another tenant), or give them an engine_class of their own",
        )


def _classes(context: Context, state: str) -> str:
    """Name the classes of engines whose learned speeds are in a state."""
    counts = context.page.by("epp_engine_rate", "engine_class", state=state)
    return ", ".join(name or "(none named)" for name, count in sorted(counts.items()) if count)


def compression(context: Context) -> Findings:
    """Check that answers are not compressed before they are read."""
    page = context.page
    packed = page.total("epp_compressed_answers_total")
    ended = page.total("epp_usage_total")
    if ended >= ENOUGH and packed > 0.05 * ended:
        yield advice(
            f"{packed:.0f} answers were compressed, so that what they cost could not be read",
            "cached tokens and answer lengths of these requests stay unknown",
            "render Envoy's configuration with --strip-accept-encoding, or let engines not compress",
        )


def response_sampling(context: Context) -> Findings:
    """Check that as many responses are read as the configuration asks for."""
    page = context.page
    if page.total("epp_response_sampling_total") < ENOUGH:
        return
    share = page.total("epp_response_sampling_share")
    if share < share_of(section_of(context.config.observe).mode):
        yield advice(
            f"{share:.1%} of responses are read, less than configured: there were too many chunks a second",
            "leases of the others end as predicted, and less is learned",
            "raise observe.max_chunks_per_s if the picker has CPU to spare, or configure sample: with the"
            " share that it holds",
        )
    else:
        yield note(f"{share:.0%} of the responses that pass the picker are read")
