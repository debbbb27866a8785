"""How the picker's state is read when Prometheus asks: label values and value of each series.

Each function is one row's ``read`` in `epp.metrics.table`. Milliseconds are shown as seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.config.plan import INCUMBENT
from epp.config.section import MOST
from epp.metrics.metrics import FAIRNESS_ID, PRIORITY
from epp.signals.health import HealthState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from numpy.typing import NDArray

    from epp.cluster.link import Link
    from epp.feeds.learned import ModelFeed, Shadow
    from epp.metrics.metrics import Metrics, Samples
    from epp.regions.link import RegionLink
    from epp.request.response_sampling import Sampler
    from epp.request.tokenizers import ServedTokenizers
    from epp.schedule.late_binding import LateBinding
    from epp.schedule.program_gate import ProgramGate
    from epp.schedule.scheduler import Scheduler
    from epp.signals.datastore import Datastore
    from epp.signals.paths import PathFigures

    class Receiver(Protocol):
        """Takes reports and counts them."""

        received: int
        malformed: int
        failed: int


@dataclass(frozen=True)
class PickerState:
    """The picker as rows of source ``scheduler`` read it.

    Attributes:
        scheduler: decides where requests go.
        mono_s: the time.
        pool: name of the pool, for llm-d's gauges of it.
        saturation: how saturated the pool is at an instant.
        stale_endpoints: of how many endpoints that knows nothing fresh, None where it does not ask.
    """

    scheduler: Scheduler
    mono_s: Callable[[], float]
    pool: str
    saturation: Callable[[float], float]
    stale_endpoints: Callable[[float], int | None] = lambda _: None

    @property
    def datastore(self) -> Datastore:
        """The signals of the pool."""
        return self.scheduler.datastore

    @property
    def slots(self) -> list[tuple[str, int]]:
        """Address and slot of each endpoint of the pool."""
        return [(endpoint.address, slot) for slot, endpoint in self.datastore.members]

    def paths(self) -> Iterable[tuple[str, PathFigures]]:
        """Describe the path to each region or endpoint."""
        return self.datastore.paths.describe(self.datastore.rtt.rtt_ms(self.mono_s())).items()


def stale_endpoints(state: PickerState) -> Samples:
    """Read how many endpoints tell the saturation detector nothing, where it asks for fresh samples."""
    found = state.stale_endpoints(state.mono_s())
    return [] if found is None else [(("utilization-detector",), float(found))]


@dataclass(frozen=True)
class QueueState:
    """What waits in the picker, as rows of source ``queue`` read it.

    Attributes:
        binding: lets requests wait.
        datastore: the engines.
        mono_s: the time.
        pool: name of the pool.
        flow_label: what metrics call a flow: only the first of many by its name.
    """

    binding: LateBinding
    datastore: Datastore
    mono_s: Callable[[], float]
    pool: str
    flow_label: Callable[[str], str]


def queue_fill(at: int) -> Callable[[QueueState], Samples]:
    """Read what part of its bound each priority uses: 0 for requests, 1 for bytes."""

    def read(state: QueueState) -> Samples:
        fills = state.binding.queue.fill().items()
        return [((str(priority), state.pool), fill[at]) for priority, fill in fills]

    return read


def total_fill(at: int) -> Callable[[QueueState], Samples]:
    """Read the same of all priorities, where they have a bound together."""

    def read(state: QueueState) -> Samples:
        queue = state.binding.queue
        bound = (queue.settings.total_requests, queue.settings.total_bytes)[at]
        return [] if bound >= MOST else [((state.pool,), queue.total_fill()[at])]

    return read


def waits_by_flow(metrics: Metrics) -> dict[str, float]:
    """Return the mean wait of each flow's requests that were let go, in seconds."""
    counts, sums = defaultdict[str, float](float), defaultdict[str, float](float)
    name = "llm_d_epp_flow_control_request_queue_duration_seconds"
    for labels, waited in metrics.series(name):
        if labels[-1] == "Dispatched":
            counts[labels[0]] += sum(waited.counts)
            sums[labels[0]] += waited.sum
    return {flow: sums[flow] / count for flow, count in counts.items() if count}


def attained(state: QueueState) -> Samples:
    """Read what each program was served of late, as the fairness between programs weighs it."""
    found = defaultdict[str, float](float)
    for flow, tokens in state.binding.queue.attained(state.mono_s()).items():
        found[state.flow_label(flow)] += tokens
    return [((flow,), tokens) for flow, tokens in found.items()]


def jains_index(metrics: Metrics) -> Samples:
    """Read how equal the mean waits of programs are."""
    waits = [*waits_by_flow(metrics).values()]
    squares = len(waits) * sum(wait_s * wait_s for wait_s in waits)
    return [((), sum(waits) ** 2 / squares)] if squares else []


def of_programs(how: Callable[[QueueState, ProgramGate], Samples]) -> Callable[[QueueState], Samples]:
    """Read what holds turns of agents; nothing where nothing does."""

    def read(state: QueueState) -> Samples:
        return [] if state.binding.programs is None else how(state, state.binding.programs)

    return read


def program_sets(figure: Callable[[Any], float]) -> Callable[[QueueState], Samples]:
    """Read a figure of each engine's set."""

    def read(state: QueueState, programs: ProgramGate) -> Samples:
        address_of = state.datastore.address_of
        return [((address_of(slot) or "",), figure(its)) for slot, its in programs.sets.engines.items()]

    return of_programs(read)


def program_counts(*kinds: str) -> Callable[[QueueState], Samples]:
    """Read counts of turns or tokens of agents."""
    return of_programs(lambda _, programs: [((kind,), float(programs.counts[kind])) for kind in kinds])


def summary_ages(link: RegionLink) -> Samples:
    """Read the age of what is known of each peer region that was ever heard."""
    ages = ((region, link.age_s(region)) for region in link.peers)
    return [((region,), age_s) for region, age_s in ages if age_s < math.inf]


def one(value: Callable[[Any], float]) -> Callable[[Any], Samples]:
    """Read a single series without labels."""
    return lambda source: [((), float(value(source)))]


def by_endpoint(
    column: Callable[[Datastore, float], NDArray[np.float64]],
) -> Callable[[PickerState], Samples]:
    """Read a column of the fleet, values that are not known left out."""

    def read(state: PickerState) -> Samples:
        values = column(state.datastore, state.mono_s())
        known = [(address, float(values[slot])) for address, slot in state.slots]
        return [((address,), value) for address, value in known if not math.isnan(value)]

    return read


def engines(state: PickerState, row: int) -> NDArray[np.float64]:
    """Read one column of what engines report: 0 running, 1 waiting, 2 KV cache usage."""
    slots = np.array([slot for _, slot in state.slots], np.intp)
    column: NDArray[np.float64] = state.datastore.engine.block(state.mono_s())[row, slots]
    return column


def pool(row: int, figure: Callable[[NDArray[np.float64]], float]) -> Callable[[PickerState], Samples]:
    """Read a figure over the engines that report; 0 when none does, as llm-d shows it."""

    def read(state: PickerState) -> Samples:
        column = engines(state, row)
        known = column[~np.isnan(column)]
        return [((state.pool,), float(figure(known)) if known.size else 0.0)]

    return read


def queues(state: PickerState) -> Samples:
    """Read the queue of each engine that reports."""
    waiting = zip(state.slots, engines(state, 1).tolist(), strict=True)
    return [((state.pool, address), value) for (address, _), value in waiting if not math.isnan(value)]


def ready(state: PickerState) -> Samples:
    """Count the endpoints that may be chosen."""
    serves = state.datastore.health.standing(state.mono_s()).serves
    taking = [slot for slot, endpoint in state.datastore.members if not endpoint.draining]
    return [((state.pool,), float(sum(map(serves, taking))))]


def load(row: int) -> Callable[[PickerState], Samples]:
    """Read a row of the ledger under llm-d's labels."""

    def read(state: PickerState) -> Samples:
        values = state.datastore.ledger.block[row]
        labels = "", "load-ledger", FAIRNESS_ID, PRIORITY
        return [((address, *labels), float(values[slot])) for address, slot in state.slots]

    return read


def unavailable(state: PickerState) -> Samples:
    """Read why endpoints get no new requests."""
    datastore, now_s = state.datastore, state.mono_s()
    proven = datastore.health.standing(now_s).proven
    for slot, endpoint in list(datastore.members):
        yield (endpoint.address, "ejected"), float(datastore.health.state(slot, now_s) is HealthState.EJECTED)
        yield (endpoint.address, "unproven"), float(proven is not None and not proven[slot])
        yield (endpoint.address, "draining"), float(endpoint.draining)
        yield (endpoint.address, "retry-after"), float(datastore.retry_after.left_s(slot, now_s) > 0.0)


def rtts(state: PickerState) -> Samples:
    """Read the round trips that are known."""
    rtt, now_s = state.datastore.rtt, state.mono_s()
    rtts_ms = rtt.rtt_ms(now_s)
    for address, slot in state.slots:
        if not math.isnan(rtts_ms[slot]):
            yield (address, rtt.source(slot, now_s) or "unknown"), float(rtts_ms[slot]) / 1e3


def rates(state: PickerState) -> Samples:
    """Read what was learned of each engine class."""
    addresses = {slot: address for address, slot in state.slots}
    for name, known in state.datastore.rates.describe(addresses).items():
        for rate, value in known.rates._asdict().items():
            yield (name, rate, known.state.value), value


def slowness(state: PickerState) -> Samples:
    """Read how much slower endpoints are than their class."""
    addresses = {slot: address for address, slot in state.slots}
    factors = dict.fromkeys(addresses.values(), 1.0)
    for known in state.datastore.rates.describe(addresses).values():
        factors.update(known.slow)
    return [((address,), factor) for address, factor in factors.items()]


def path_requests(state: PickerState) -> Samples:
    """Count requests on new and open connections by path."""
    for path, seen in state.paths():
        yield (path, "cold"), seen.cold
        yield (path, "warm"), seen.requests - seen.cold


def path_network(state: PickerState) -> Samples:
    """Read estimated network times by path."""
    for path, seen in state.paths():
        for connection, value_ms in (("cold", seen.cold_ms), ("warm", seen.warm_ms)):
            if not math.isnan(value_ms):
                yield (path, connection), value_ms / 1e3


def token_counters(tokenizers: ServedTokenizers) -> Samples:
    """Read what counts the tokens of each served model's prompts."""
    return [((model, by), 1.0) for model, by in tokenizers.counted_by.items()]


def weights(state: PickerState) -> Samples:
    """Read the weights of each arm."""
    book = state.scheduler.weights
    arms = [(INCUMBENT, book.current)]
    if book.plan.trial is not None:
        arms.append((book.plan.trial.arm, book.arm_weights))
    for arm, weights in arms:
        for name, value in weights.values.items():
            yield (name, weights.sources[name], arm), value


def weights_version(state: PickerState) -> Samples:
    """Read when the weights in force were written."""
    book = state.scheduler.weights
    return [((book.policy, book.current.version), book.plan.written_wall_s)]


def reports(receivers: Mapping[str, Receiver]) -> Samples:
    """Count reports by receiver."""
    for name, receiver in receivers.items():
        yield (name, "received"), receiver.received
        yield (name, "malformed"), receiver.malformed
        yield (name, "failed"), receiver.failed


def peer_messages(link: Link) -> Samples:
    """Read what became of messages."""
    counts = link.index_sync.counts
    results = {"sent": counts.sent, "dropped": link.dropped, "received": counts.received, "lost": counts.lost}
    results |= {f"ignored: {reason}": count for reason, count in counts.ignored.items()}
    return [((result,), float(count)) for result, count in results.items()]


def change_ages(link: Link) -> Samples:
    """Read quantiles of the ages of changes."""
    ages_s = sorted(link.index_sync.counts.staleness_s)
    quantiles = ("0.5", "0.99") if ages_s else ()
    return [((quantile,), ages_s[int(float(quantile) * (len(ages_s) - 1))]) for quantile in quantiles]


def sampled(sampler: Sampler) -> Samples:
    """Count responses by what becomes of them."""
    return [((how.value,), float(count)) for how, count in sampler.counts.items()]


def model_age(feed: ModelFeed) -> Samples:
    """Read the age of the reward model; no series without one."""
    model = feed.model
    return [] if model is None else [((model.version, feed.withdrawn), feed.age_s)]


def shadowed(shadow: Shadow) -> Samples:
    """Count scored decisions by policy in shadow."""
    for account in shadow.accounts:
        for result, count in account.counts.items():
            yield (account.policy.name, result), float(count)


def differences(shadow: Shadow) -> Samples:
    """Read mean differences by policy in shadow."""
    return [((account.policy.name,), account.difference_s) for account in shadow.accounts]
