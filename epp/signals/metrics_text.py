"""Engine metrics from Prometheus exposition text: the dozen numbers wanted, out of thousands of lines.

Owns the names that engines use, how series add up, and the reading of lines. A general parser builds every
histogram bucket of every family; this one looks at a line only when its first bytes name something wanted.
Text comes from the network: bytes and line length are bounded, whatever does not read is skipped, and nothing
raises.

Series of one name are first reduced over shards of the same scheduler (labels such as ``tp_rank``: each shard
shows the same number, the largest counts) and then over schedulers (data-parallel ranks, models): counts and
capacities add up, shares are averaged. What adds up to what is settled once for a list of series (`Plan`),
and then holds for any numbers that they have.

Names come as the engine writes them or as others change them: collectors and Ray put underscores for colons,
Ray prefixes ``ray_`` and shows a counter both with and without ``_total``, Prometheus 3 quotes names. All of
these are one name here (`canonical`).

An engine prints the same series in the same order each time, so `MetricsReader` looks for each line where it
was the last time and reads its number alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Labels = dict[bytes, bytes]
    #: Positions of the shards of each scheduler.
    Groups = tuple[tuple[int, ...], ...]
    Combine = Callable[[Sequence[float]], float]

SHARDS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank", b"ep_rank"})
#: Labels of data-parallel ranks, of vLLM and of SGLang.
RANKS = (b"engine", b"dp_rank")


class Adapters(NamedTuple):
    """LoRA adapters of an engine.

    Attributes:
        running: loaded.
        waiting: to be loaded.
        most: how many it loads at once.
    """

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    most: int = 0


NO_ADAPTERS = Adapters()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What one scrape shows; None is unknown.

    Attributes:
        engine: a key of `ENGINES`, ``""`` when none is recognised.
        running: requests in the batch.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use, 0..1.
        kv_capacity_tokens: size of the KV cache.
        process_start_time_s: Unix time at which the process started.
        prompt_tokens_total: prompt tokens so far.
        generation_tokens_total: generated tokens so far.
        kv_block_tokens: tokens of a block of the KV cache, where only whole blocks are found again.
        adapters: its LoRA adapters.
        role: what it does of requests by its own word, ``""`` where it says nothing.
        transfer_s_total: seconds that KV caches have come to it so far, each part for itself.
        transfers_total: how many parts, of which a cache has one for each GPU.
    """

    engine: str = ""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    process_start_time_s: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    kv_block_tokens: int | None = None
    adapters: Adapters = NO_ADAPTERS
    role: str = ""
    transfer_s_total: float | None = None
    transfers_total: float | None = None


#: By engine and meaning, names of which the first that is present counts. The first engine of which a name is
#: present is the page's. A name may select one series by a label, ``name{label=value}``, or be a sum,
#: ``name+name``. Capacity is one gauge, the product of two labels of an info metric (``info``: metric, tokens
#: of a block, blocks), or the product of two gauges (``product``: these engines reuse parts of blocks).
#: ``in_flight`` counts the running and the waiting requests together.
ENGINES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter before v1
        "info": ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "adapters": ("vllm:lora_requests_info",),
        "transfer_s": ("vllm:nixl_xfer_time_seconds_sum",),
        "transfers": ("vllm:nixl_xfer_time_seconds_count",),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_usage": ("sglang:token_usage",),
        "capacity": ("sglang:max_total_num_tokens",),
        "info": ("sglang:cache_config_info", "page_size", "num_pages"),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
    },
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
    },
    "trtllm": {
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "kv_usage": ("trtllm_kv_cache_utilization",),
        "product": ("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"),
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "generation_tokens": ("trtllm_generation_tokens_total",),
    },
    "triton": {
        "running": ("nv_trt_llm_request_metrics{request_type=scheduled}",),
        "waiting": ("nv_trt_llm_request_metrics{request_type=waiting}",),
        "kv_usage": ("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",),
        "product": (
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ),
    },
    "tgi": {
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
    },
    "lmdeploy": {
        "running": ("lmdeploy:num_requests_running",),
        # Some wait for a handle in the server, before the engine; older versions do not show them.
        "waiting": ("lmdeploy:num_requests_waiting+lmdeploy:num_api_requests_waiting",),
        "kv_usage": ("lmdeploy:gpu_cache_usage_perc",),
        "prompt_tokens": ("lmdeploy:prompt_tokens_total",),
        "generation_tokens": ("lmdeploy:generation_tokens_total",),
    },
    # A frontend, or a worker whose engine shows no names of its own.
    "dynamo": {
        "in_flight": (
            "dynamo_frontend_inflight_requests",
            "dynamo_component_inflight_requests{dynamo_endpoint=generate}",
        ),
        "waiting": ("dynamo_frontend_queued_requests",),
        "kv_usage": (
            "dynamo_component_gpu_cache_usage_percent",
            "dynamo_component_kvstats_gpu_cache_usage_percent",  # until 2025
        ),
        "prompt_tokens": ("dynamo_frontend_input_sequence_tokens_sum",),
        "generation_tokens": ("dynamo_frontend_output_tokens_total",),
    },
}
START = "process_start_time_seconds"
#: SGLang's label for ``prefill``, ``decode`` or ``unified``.
_ROLE = b"engine_type"


def canonical(name: str) -> str:
    """Return a metric's name as it is told apart here, however it was changed on its way."""
    return re.sub("[:.]", "_", name).removeprefix("ray_").removesuffix("_total")


def wanted() -> frozenset[str]:
    """Return the canonical metric names that mean something here."""
    names = {START}
    for spec in ENGINES.values():
        for meaning, group in spec.items():
            names.update(group[:1] if meaning == "info" else group)
    return frozenset(canonical(part.partition("{")[0]) for name in names for part in name.split("+"))


class Plan:
    """How numbers of a list of series add up.

    Args:
        series: name and labels of each.
    """

    def __init__(self, series: Iterable[tuple[str, Labels]]) -> None:
        self._found: dict[str, list[tuple[int, Labels]]] = {}
        for at, (name, labels) in enumerate(series):
            self._found.setdefault(name, []).append((at, labels))
        self._start = self._groups((START,))
        self._engine, spec = "", dict[str, tuple[str, ...]]()
        for engine, names in ENGINES.items():
            if any(self._groups(group) for meaning, group in names.items() if meaning != "info"):
                self._engine, spec = engine, dict(names)
                break
        self._kv_usage, self._capacity, *self._counts = (
            self._groups(spec.get(meaning, ()))
            for meaning in (
                "kv_usage",
                "capacity",
                "running",
                "waiting",
                "in_flight",
                "prompt_tokens",
                "generation_tokens",
                "transfer_s",
                "transfers",
            )
        )
        info, *sizes = spec.get("info", ("", ""))
        self._info_tokens = self._of_labels(info, sum, *sizes)
        self._block_tokens = self._of_labels(info, max, sizes[0])
        block, count = (self._by_scheduler(name) for name in spec.get("product", ("", "")))
        self._products = [((block[key],), (count[key],)) for key in block if key in count]
        found = [each for name in spec.get("adapters", ()) for each in self._found.get(canonical(name), ())]
        shown = [
            labels for name in spec.get("running", ()) for _, labels in self._found.get(canonical(name), ())
        ]
        self._role = next((labels.get(_ROLE, b"").decode("utf-8", "replace") for labels in shown), "")
        self._adapters = [(at, _adapters(labels)) for at, labels in found]
        del self._found

    def sample(self, numbers: Sequence[float]) -> EngineSample:
        """Add up numbers in the order of the series; NaN for what is no number."""
        usage = _reduce(numbers, self._kv_usage, _mean)
        counts = (_reduce(numbers, groups, sum) for groups in self._counts)
        running, waiting, in_flight, prompt, generation, transfer_s, transfers = counts
        if in_flight is not None:
            running = max(in_flight - (waiting or 0.0), 0.0)
        return EngineSample(
            self._engine,
            running,
            waiting,
            None if usage is None else min(usage, 1.0),
            self._capacity_tokens(numbers),
            _reduce(numbers, self._start, max),
            prompt,
            generation,
            int(self._block_tokens or 0) or None,
            # Each set of adapters has a series, whose number is the time at which it came to be.
            max(self._adapters, key=lambda each: numbers[each[0]], default=(0, NO_ADAPTERS))[1],
            self._role,
            transfer_s,
            transfers,
        )

    def _capacity_tokens(self, numbers: Sequence[float]) -> int | None:
        total = _reduce(numbers, self._capacity, sum)
        if total is None:
            total = self._info_tokens
        if total is None:
            products = [
                block * count
                for one, other in self._products
                if (block := _over_schedulers(numbers, one, sum)) is not None
                and (count := _over_schedulers(numbers, other, sum)) is not None
            ]
            total = sum(products) if products else None
        return int(total) if total is not None and 1.0 <= total < math.inf else None

    def _of_labels(self, metric: str, combine: Combine, *names: str) -> float | None:
        """Multiply labels of an info metric, whose number says nothing, and combine its series."""
        sizes = dict[int, float]()
        for at, labels in self._found.get(canonical(metric), ()):
            sizes[at] = math.prod(number(labels.get(name.encode(), b"")) for name in names)
        by_series = [sizes.get(at, math.nan) for at in range(max(sizes, default=-1) + 1)]
        return _reduce(by_series, self._groups((metric,)), combine)

    def _groups(self, names: Iterable[str]) -> list[Groups]:
        """Group the series of each name that is there by scheduler."""
        found = [tuple(self._by_scheduler(name).values()) for name in names]
        return [groups for groups in found if groups]

    def _by_scheduler(self, name: str) -> dict[frozenset[tuple[bytes, bytes]], tuple[int, ...]]:
        """Group the series of ``name``, ``name{label=value}`` or ``name+name`` by scheduler."""
        groups: dict[frozenset[tuple[bytes, bytes]], tuple[int, ...]] = {}
        for rank, part in enumerate(name.split("+")):
            metric, _, selector = part.partition("{")
            label, _, value = selector.rstrip("}").encode().partition(b"=")
            for at, labels in self._found.get(canonical(metric), ()):
                if label and labels.get(label) != value:
                    continue
                key = frozenset(item for item in labels.items() if item[0] not in SHARDS and item[0] != label)
                key |= {(b"", b"%d" % rank)} if rank else set()  # of another kind: added
                groups[key] = (*groups.get(key, ()), at)
        return groups


def _adapters(labels: Labels) -> Adapters:
    def names(label: bytes) -> frozenset[str]:
        told = labels.get(label, b"").decode("utf-8", "replace").split(",")
        return frozenset(name.strip() for name in told if name.strip())

    most = number(labels.get(b"max_lora", b""))
    running, waiting = names(b"running_lora_adapters"), names(b"waiting_lora_adapters")
    return Adapters(running, waiting, int(most) if 0.0 <= most < 1e6 else 0)


def _reduce(numbers: Sequence[float], names: Iterable[Groups], combine: Combine) -> float | None:
    """Return the value of the first name that has one, over shards and schedulers."""
    for groups in names:
        value = _over_schedulers(numbers, groups, combine)
        if value is not None:
            return value
    return None


def _over_schedulers(numbers: Sequence[float], groups: Groups, combine: Combine) -> float | None:
    """Combine the largest value of each scheduler's shards; what is no number of things is left out."""
    values = []
    for group in groups:
        largest = -1.0
        for at in group:
            if largest < numbers[at] < math.inf:
                largest = numbers[at]
        if largest >= 0.0:
            values.append(largest)
    value = combine(values) if values else math.nan
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def number(text: bytes) -> float:
    """Read a decimal number, NaN for anything else."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan


#: Enough for the largest exposition of a large engine, several times over.
MAX_BYTES = 4 * 1024 * 1024
#: Longest line looked at; info metrics with a whole configuration in their labels take a few thousand.
MAX_LINE_BYTES = 16 * 1024
#: Series kept per name; an engine has a handful of ranks.
MAX_SERIES = 1024
#: Readings from memory between two that look at everything.
REMEMBERED_READINGS = 60

_LABEL = re.compile(rb'[ \t]*"?([a-zA-Z_][a-zA-Z0-9_.]*)"?[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)')

#: Between a name and the first label.
_BRACE, _QUOTED = re.compile(rb"[ \t]*\{"), re.compile(rb'"[ \t]*,?')


def _pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    """Finds the lines of these names. Names are grouped by engine, so that a line is refused early."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        stem, _, rest = name.partition("_")
        groups.setdefault(stem, []).append(rest)
    choice = "|".join(f"{stem}[:_.](?:{'|'.join(rest)})" for stem, rest in groups.items())
    return re.compile(rf'\n[ \t]*(\{{[ \t]*")?((?:ray_)?(?:{choice})(?:_total)?)(?=[ \t{{"])'.encode())


_GPU = re.compile(rb"^DCGM_FI_DEV_GPU_UTIL(?:[ \t]*\{[^\n]*\})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)


def gpu_utilization(text: bytes) -> float | None:
    """Return the utilization (0..1) of the busiest GPU that DCGM Exporter shows."""
    shown = (number(found) for found in _GPU.findall(text[:MAX_BYTES]))
    return max((value / 100.0 for value in shown if 0.0 <= value <= 100.0), default=None)


# One pass of the pattern engine over the text finds the candidate lines; Python sees no others.
_FIND = _pattern(wanted())
#: No wanted line is shorter: a page that has grown by less has no further one.
_SHORTEST_LINE = min(map(len, wanted())) + len(b" 0\n")


class _Line(NamedTuple):
    """A line that reads: its series, where it begins (the line feed before it), and where its value does."""

    name: str
    labels: Labels
    begins: int
    value_begins: int
    ends: int


#: A comment, the end, or a name before labels or a value; no JSON and no HTML.
_EXPOSITION = re.compile(rb"\s*(?:#|$|[a-zA-Z_:][a-zA-Z0-9_:]*[ \t{])")


def is_exposition(text: bytes, sample: EngineSample) -> bool:
    """Tell whether a page, of which this was read, is metrics; an idle engine may have none to show yet."""
    return bool(sample.engine or _EXPOSITION.match(text))


def parse_metrics(text: bytes) -> EngineSample:
    """Read the wanted numbers of an exposition (Prometheus text or OpenMetrics); never raises.

    Beyond `MAX_BYTES` the text is cut at the last full line; longer lines than `MAX_LINE_BYTES` are skipped.
    """
    return MetricsReader().read(text)


class MetricsReader:
    """Reads the expositions of one endpoint, one after the other; each as `parse_metrics` would.

    While a page has as many lines as the one before, or nearly as many bytes, and each wanted line begins as
    it did there and comes in the same order, only the numbers are read. A wanted series that takes the place
    of another line, or of a short one that had left before, is so noticed `REMEMBERED_READINGS` readings
    later at the latest: then everything is read.

    Args:
        rank: the data-parallel rank to read, and what is of none; None for all.
        ranks: how many there are.
    """

    def __init__(self, rank: int | None = None, ranks: int = 1) -> None:
        self._rank, self._ranks = rank, ranks
        self._left = 0
        self._bytes = self._line_feeds = 0
        self._starts: list[bytes] = []
        self._places: list[int] = []
        self._values: list[bytes] = []
        self._plan = Plan(())
        self._sample = EngineSample()

    def read(self, text: bytes) -> EngineSample:
        """Read an exposition; never raises. Returns the same object again when no number has changed."""
        if len(text) > MAX_BYTES:
            text = text[: text.rfind(b"\n", 0, MAX_BYTES) + 1]
        text = b"\n" + text
        values = self._again(text)
        if values is None:
            values = self._anew(text)
        elif values == self._values:
            return self._sample
        self._values = values
        # A timestamp or an exemplar may follow.
        self._sample = self._plan.sample([number(value.split(None, 1)[0]) for value in values])
        return self._sample

    def _again(self, text: bytes) -> list[bytes] | None:
        """What follows the remembered series, None when the page is another than the one remembered."""
        self._left -= 1
        grown, self._bytes = abs(len(text) - self._bytes), len(text)
        if self._left < 0 or (grown >= _SHORTEST_LINE and text.count(b"\n") != self._line_feeds):
            return None
        values, shift, at = [], 0, 0
        for index, start in enumerate(self._starts):
            place = self._places[index]
            if place + shift < at or not text.startswith(start, place + shift):
                found = text.find(start, at)
                if found < 0:
                    return None
                shift = found - place
            self._places[index] = place + shift
            begins = place + shift + len(start)
            at = text.find(b"\n", begins)
            at = len(text) if at < 0 else at
            value = text[begins:at]
            if not value[:1].strip() or len(start) + len(value) > MAX_LINE_BYTES:
                return None
            values.append(value)
        return values

    def _anew(self, text: bytes) -> list[bytes]:
        """Look at every line, and remember where the wanted ones are; what follows their series."""
        lines, all_read = _lines(text)
        if self._rank is not None:
            lines = _of_rank(lines, self._rank, self._ranks)
        # One that does not read now may the next time.
        self._left, self._line_feeds = REMEMBERED_READINGS if all_read else 0, text.count(b"\n")
        self._starts = [text[line.begins : line.value_begins] for line in lines]
        self._places = [line.begins for line in lines]
        self._plan = Plan((line.name, line.labels) for line in lines)
        return [text[line.value_begins : line.ends] for line in lines]


def _lines(text: bytes) -> tuple[list[_Line], bool]:
    """The wanted lines that read, in order, and whether all do; ``text`` begins with a line feed."""
    lines, seen, all_read = [], dict[bytes, int](), True
    for match in _FIND.finditer(text):
        end = text.find(b"\n", match.end())
        end = len(text) if end < 0 else end
        name = match[2]
        count = seen.get(name, 0)
        found = None
        if end - match.start() <= MAX_LINE_BYTES and count < MAX_SERIES:
            found = _read(text[match.end() : end], quoted=match[1] is not None)
        if found is None:
            all_read = False
            continue
        seen[name] = count + 1
        labels, length = found
        lines.append(_Line(canonical(name.decode()), labels, match.start(), match.end() + length, end))
    return lines, all_read


def _of_rank(lines: list[_Line], rank: int, ranks: int) -> list[_Line]:
    """Keep the lines of a rank, and those of none.

    A node that serves some of many ranks shows their numbers among all; requests name them from 0 on. Which
    these are is known once all of them are shown, as an engine may show one only after its first request.
    """
    told = [b"".join(line.labels.get(label, b"") for label in RANKS) for line in lines]
    shown = sorted({int(name) for name in told if name.isdigit()})
    number = shown[rank] if len(shown) == ranks else rank
    return [line for line, name in zip(lines, told, strict=True) if name in (b"", b"%d" % number)]


def _read(rest: bytes, *, quoted: bool) -> tuple[Labels, int] | None:
    """Labels of a line's end after its name, and where in it the value begins; None when it does not read.

    A quoted name is the first in the braces, and its closing quote the first of ``rest``.
    """
    labels: Labels = {}
    begins = _QUOTED.match(rest) if quoted else _BRACE.match(rest)
    at = begins.end() if begins is not None else 0
    if begins is not None:
        while (pair := _LABEL.match(rest, at)) is not None:
            labels[pair[1]] = pair[2]
            at = pair.end()
            if not pair[3]:
                break
        while rest[at : at + 1] in (b" ", b"\t"):
            at += 1
        if not rest.startswith(b"}", at):
            return None
        at += 1
    value = rest[at:].lstrip()
    return (labels, len(rest) - len(value)) if value else None
