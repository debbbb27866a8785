"""Checks of the running picker, by its readiness and its own metrics. Pure but for the page it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from epp.server.observe import section_of, share_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.server.doctor.findings import Report

#: No region of the earth is farther over fibre; a satellite link is.
FAR_S = 1.0
#: Endpoints of one region differ by less, and by no more than this factor.
SAME_REGION_S, SAME_REGION_FACTOR = 0.02, 5.0
#: Requests below which shares say nothing.
ENOUGH = 100
#: Engines that had less than this share of the cached tokens expected of them do not cache as is believed.
LOW_HITS = 0.5

_Labels = dict[str, str]


class Page:
    """A metrics page by name.

    Raises:
        ValueError: it is no exposition.
    """

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[_Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __contains__(self, name: object) -> bool:
        return name in self._samples

    def labels(self, name: str) -> list[_Labels]:
        """Labels of the series that are not 0."""
        return [labels for labels, value in self._samples.get(name, ()) if value]

    def by(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Values by one label, summed over the others, of the series with the wanted labels."""
        found: dict[str, float] = {}
        for labels, value in self._samples.get(name, ()):
            if wanted.items() <= labels.items():
                key = labels.get(label, "")
                found[key] = found.get(key, 0.0) + value
        return found

    def total(self, name: str, **labels: str) -> float:
        """Sum of the series with these labels, 0 when there is none."""
        return sum(self.by(name, "", **labels).values())


def check_picker(report: Report, page: Page, config: Config, specs: Mapping[str, EndpointSpec]) -> None:
    """All checks that need nothing but the picker's own word."""
    _files(report, page, config)
    _secret(report, config)
    _tokens(report, page)
    _endpoints(report, page, config, specs)
    _rtts(report, page, specs)
    _losses(report, page)
    _reports(report, page)
    _learned(report, page, specs)
    _observed(report, page, config)


def _files(report: Report, page: Page, config: Config) -> None:
    states = page.by("epp_file_ok", "file")
    for file, state in states.items():
        if not state:
            report.error(
                "picker",
                f"the {file} file cannot be used; an older content is in force",
                "what is written there has no effect",
                "the picker's log names file, key and fix",
            )
    good = [file for file, value in states.items() if value]
    if good:
        report.note("picker", f"files in force: {', '.join(good)}")
    named = {
        "weights": config.weights_file,
        "overrides": config.overrides_file,
        "capability": config.capability.file,
        "model": config.policy.model_file,
    }
    missing = [f"{file} ({path})" for file, path in named.items() if path and file not in states]
    if missing:
        report.note(
            "picker", f"files that are not there, so that nothing of them counts: {', '.join(missing)}"
        )
    weights = ", ".join(
        f"{name} {value:g}" for name, value in page.by("epp_weight", "name", arm="incumbent").items()
    )
    if weights:
        report.note("picker", f"weights in force: {weights}")


def _secret(report: Report, config: Config) -> None:
    if not config.prefix.secret_file:
        report.note(
            "picker",
            "prefix.secret_file is not set: after a restart conversations move, and nothing can be restored",
        )


def _tokens(report: Report, page: Page) -> None:
    """What counts the tokens of prompts."""
    models: dict[str, list[str]] = {}
    for labels in page.labels("epp_model_tokens_counted"):
        models.setdefault(labels.get("by", ""), []).append(labels.get("model_name", ""))
    if counted := models.get("tokenizer"):
        report.note("picker", f"tokens are counted by the model's tokenizer: {', '.join(counted)}")
    if estimated := models.get("estimate"):
        report.note("picker", f"tokens are estimated, the picker's log says why: {', '.join(estimated)}")


def _endpoints(report: Report, page: Page, config: Config, specs: Mapping[str, EndpointSpec]) -> None:
    ejected = page.by("epp_endpoint_unavailable", "endpoint", reason="ejected")
    missing = sorted(specs.keys() - ejected.keys())
    if missing:
        report.error(
            "picker",
            f"the picker does not know {', '.join(missing)} of the endpoints file",
            "these get no requests",
            "does the picker run with this configuration, and can it read the file?",
        )
    out = sorted(address for address, value in ejected.items() if value)
    if out:
        report.error(
            "picker",
            f"ejected: {', '.join(out)}",
            "the others carry their load",
            f"ask {config.probe.path} of them from where the picker runs",
        )
    if page.total("epp_health_panicking"):
        report.error(
            "picker",
            "so many endpoints fail that ejections are ignored",
            "requests are sent to endpoints that do not answer probes",
            "look at the network between picker and endpoints",
        )
    ages = page.by("epp_endpoint_engine_age_seconds", "endpoint")
    stale = sorted(a for a, age in ages.items() if a in specs and age > config.scrape.stale_after_s)
    never = sorted(specs.keys() - ages.keys() - set(missing)) if config.scrape.interval_s else []
    if stale or never:
        report.warning(
            "picker",
            f"the picker has no fresh metrics of {', '.join(stale + never)}",
            "their queue and cache usage count as unknown",
            'see what is said of the engines, and epp_endpoint_events_total{event="scrape-failed"}',
        )


def _rtts(report: Report, page: Page, specs: Mapping[str, EndpointSpec]) -> None:
    rtts = page.by("epp_endpoint_rtt_seconds", "endpoint")
    unknown = sorted(specs.keys() - rtts.keys())
    if unknown:
        report.warning(
            "network",
            f"the RTT to {', '.join(unknown)} is not known",
            "they count as far as the farthest",
            "probes need a warm connection: keep-alive longer than probe.interval_s; or state rtt_ms",
        )
    for address, rtt_s in sorted(rtts.items()):
        spec = specs.get(address)
        if rtt_s > FAR_S:
            report.warning(
                "network",
                f"the RTT to {address} is {rtt_s * 1e3:.0f} ms",
                "no network takes that long: the endpoint answers probes late, and is priced as far away",
                "let probe.path be something that the engine answers while it is busy",
            )
        elif spec is not None and spec.rtt_ms and not spec.rtt_ms / 3 <= rtt_s * 1e3 <= spec.rtt_ms * 3:
            report.advice(
                "network",
                f"the RTT to {address} is {rtt_s * 1e3:.1f} ms, stated were {spec.rtt_ms:g} ms",
                "the statement is used whenever the measurement is missing",
                "correct rtt_ms of the endpoint, or drop it",
            )
    _regions(report, rtts, specs)
    if rtts:
        low, high = min(rtts.values()) * 1e3, max(rtts.values()) * 1e3
        report.note("network", f"RTTs from {low:.1f} to {high:.1f} ms")


def _regions(report: Report, rtts: Mapping[str, float], specs: Mapping[str, EndpointSpec]) -> None:
    regions: dict[str, list[float]] = {}
    for address, rtt_s in rtts.items():
        spec = specs.get(address)
        if spec is not None and spec.region:
            regions.setdefault(spec.region, []).append(rtt_s)
    for region, values in regions.items():
        low, high = min(values), max(values)
        if high - low > SAME_REGION_S and high > SAME_REGION_FACTOR * low:
            report.warning(
                "network",
                f"RTTs to region {region} go from {low * 1e3:.1f} to {high * 1e3:.1f} ms",
                "either an endpoint is labelled with the wrong region, or one answers probes late",
                "correct its region, or look at its load",
            )


def _losses(report: Report, page: Page) -> None:
    dropped = page.total("epp_records_dropped_total")
    if dropped:
        report.warning(
            "picker",
            f"{dropped:.0f} records were lost",
            "nothing can be learned of these requests",
            "look at the disk of the folder of records",
        )
    restarts = page.total("epp_faults_total", part="recorder")
    if restarts:
        report.error(
            "picker",
            f"the thread that writes records failed {restarts:.0f} times and was started again",
            "records were lost: nothing can be learned of these requests",
            "the log holds the traceback; please report it",
        )
    faults = page.total("epp_faults_total", part="stream")
    if faults:
        report.error(
            "picker",
            f"{faults:.0f} streams failed by a fault of the picker",
            "these requests went on unpicked, or failed",
            "the log holds the traceback; please report it",
        )
    requests = page.total("epp_decisions_total")
    expired = page.total("epp_leases_lost_total", reason="expired")
    if requests >= ENOUGH and expired > 0.01 * requests:
        report.warning(
            "picker",
            f"{expired:.0f} of {requests:.0f} requests never ended for the picker",
            "load is overestimated where ends are missing",
            "let Envoy report ends (access log to the picker), or lower leases.ttl_s",
        )
    expected, seen = (page.total("epp_cache_tokens_total", kind=kind) for kind in ("expected", "reported"))
    prompt = page.total("epp_cache_tokens_total", kind="prompt")
    if page.total("epp_usage_total", known="cached_tokens") >= ENOUGH and expected - seen > 0.25 * prompt:
        report.warning(
            "picker",
            f"{expected / prompt:.0%} of prompts were expected in caches, {seen / prompt:.0%} were there",
            "requests are sent after caches that are gone",
            "state kv_capacity_tokens of the endpoints",
        )


def _reports(report: Report, page: Page) -> None:
    requests = page.total("epp_decisions_total")
    results = page.by("epp_reports_total", "result")
    if results.get("malformed") or results.get("failed"):
        report.warning(
            "picker",
            f"reports: {results.get('malformed', 0):.0f} not readable, {results.get('failed', 0):.0f} failed",
            "the outcomes of these requests are not known",
            "is something else than Envoy sending to these listeners?",
        )
    streamed = page.total("llm_d_epp_request_ttft_seconds_count")
    if requests >= ENOUGH and not streamed:
        report.warning(
            "picker",
            f"of {requests:.0f} requests the first token of none was seen",
            "TTFT is not measured, and uncached tokens count as pending until a request ends",
            "render Envoy's configuration with `epp envoy render`, or let responses pass the picker",
        )
    late = page.total("epp_late_reports_total")
    if requests >= ENOUGH and late > 0.1 * requests:
        report.warning(
            "picker",
            f"{late:.0f} reports were on decisions that the picker does not know",
            "another picker misses them",
            "let every Envoy report to the picker that it asks",
        )
    told = page.by("epp_usage_total", "known")
    if sum(told.values()) >= ENOUGH:
        with_cache = told.get("cached_tokens", 0.0) / sum(told.values())
        report.note("traffic", f"{with_cache:.0%} of answers told their cached tokens")


def _learned(report: Report, page: Page, specs: Mapping[str, EndpointSpec]) -> None:
    """Whether what is learned of engines is what engines do."""
    ratios = page.by("epp_endpoint_hit_ratio", "endpoint")
    low = sorted(address for address, ratio in ratios.items() if address in specs and ratio < LOW_HITS)
    if low and page.total("epp_decisions_total") >= ENOUGH:
        told = ", ".join(f"{address} {ratios[address]:.0%}" for address in low)
        report.warning(
            "engine",
            f"of the cached tokens expected of them engines had: {told}",
            "requests are sent after caches that are gone, or never were",
            "is prefix caching on there (see what is said of the engines)? does somebody else fill the cache?"
            " is kv_capacity_tokens larger than the cache, or does prefix.block_tokens not fit the model?",
        )
    states: dict[str, set[str]] = {}
    for labels in page.labels("epp_engine_rate"):
        states.setdefault(labels.get("state", ""), set()).add(labels.get("engine_class") or "(none named)")
    if states.get("at-bound"):
        report.warning(
            "engine",
            f"what was measured of engine class {', '.join(sorted(states['at-bound']))} fits no engine",
            "times to first token and to the end are foretold wrongly, and gorgo-ms prices by them",
            "name the class after the hardware (l40s, h100, a30, v100) if it is one of these; look at the"
            " RTTs and at what stands between picker and engine",
        )
    if states.get("measured"):
        report.note("engine", f"speeds are measured of engine class {', '.join(sorted(states['measured']))}")
    slow = {a: factor for a, factor in page.by("epp_endpoint_slowness", "endpoint").items() if factor > 1.0}
    if slow:
        told = ", ".join(f"{address} {factor:.1f} times" for address, factor in sorted(slow.items()))
        report.advice(
            "engine",
            f"slower than their equals: {told}",
            "they are priced by it, but do less than they are paid for",
            "look at their GPU (clocks, heat, another tenant), or give them an engine_class of their own",
        )


def _observed(report: Report, page: Page, config: Config) -> None:
    """What is seen of answers at all."""
    packed = page.total("epp_compressed_answers_total")
    ended = page.total("epp_usage_total")
    if ended >= ENOUGH and packed > 0.05 * ended:
        report.advice(
            "envoy",
            f"{packed:.0f} answers were compressed, so that what they cost could not be read",
            "cached tokens and answer lengths of these requests stay unknown",
            "render Envoy's configuration with strip_accept_encoding, or let engines not compress",
        )
    passed = sum(page.by("epp_response_sampling_total", "observe").values())
    share = page.total("epp_response_sampling_share")
    fell = passed >= ENOUGH and share < share_of(section_of(config.observe).mode)
    if fell:
        report.advice(
            "picker",
            f"{share:.1%} of responses are read, less than configured: there were too many chunks a second",
            "leases of the others end as predicted, and less is learned",
            "raise observe.max_chunks_per_s if the picker has CPU to spare, or configure sample: with the"
            " share that it holds",
        )
    elif passed >= ENOUGH:
        report.note("picker", f"{share:.0%} of the responses that pass the picker are read")
