"""A picker without sockets, as the server builds it: recorder, metrics, a fleet with every signal known."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from epp.apis.registry import affinity_key, find_parser
from epp.clock import ManualClock
from epp.config.schema import PolicySection, Records
from epp.errors import EppError
from epp.extproc.types import HttpRequest
from epp.lab.bench.prompts import opening
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.prefix_cache.index import PrefixIndex
from epp.records.recorder import FileRecorder, NoRecorder
from epp.schedule.picker import Ask, Picker, PickerSettings
from epp.schedule.weights import WeightBook
from epp.server.core import Core
from epp.server.metrics import Metrics
from epp.server.resolve import Resolver
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.metrics_text import EngineSample
from epp.tokens.estimate import EstimateCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.apis.types import MeasuredPrompt, ParsedRequest
    from epp.records.recorder import Recorder
    from epp.server.tokenizers import Tokenizers

#: Headers as Envoy sends them.
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "inference.example",
    ":path": "/v1/chat/completions",
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "OpenAI/Python 1.60.0",
    "authorization": "Bearer 0123456789abcdef0123456789abcdef",
    "x-forwarded-for": "192.0.2.17",
    "x-forwarded-proto": "http",
    "x-request-id": "0d9b3c0a-7f0e-4e0e-9d8b-1f8f8e5b7d11",
}
_CAPACITY_TOKENS = 50_000_000


class Rig:
    """A picker's parts.

    Args:
        endpoints: size of the fleet; each has an RTT, engine metrics and the common system prompt cached.
        recorder: takes its records.
        policy: prices; the default one of a picker unless another is named.
        tokenizers: count its prompts; they are estimated without.
    """

    def __init__(
        self,
        endpoints: int,
        recorder: Recorder | None = None,
        policy: str = PolicySection().name,
        *,
        tokenizers: Tokenizers | None = None,
    ) -> None:
        self.hasher = BlockHasher(b"a secret of benchmarks")
        self.counter = EstimateCounter()
        self.clock = ManualClock()
        numbers, ranking = count(1), create(policy)
        self.index = PrefixIndex(capacity_tokens=_CAPACITY_TOKENS)
        self.picker = Picker(
            fleet=Fleet(self.index),
            policy=ranking,
            balance=create("least-request"),
            weights=WeightBook(
                policy=policy, specs=ranking.weight_specs, configured={}, bounds={}, source=""
            ),
            settings=PickerSettings(warmup_s=0.0),
            new_id=lambda: f"0123456789abcdef-{next(numbers):x}",
            name_block=self.hasher.export_id,
        )
        self.core = Core(
            picker=self.picker,
            counter=self.counter,
            hasher=self.hasher,
            regions=(),
            tenant_header="",
            metrics=Metrics(),
            recorder=recorder or NoRecorder(),
            clock=self.clock,
            resolver=Resolver(),
            tokenizers=tokenizers,
        )
        self._fill(endpoints)

    def _fill(self, endpoints: int) -> None:
        fleet = self.picker.fleet
        pool = [
            Endpoint(f"10.{at >> 8}.{at & 255}.7:8000", region=f"region-{at % 5}") for at in range(endpoints)
        ]
        self.picker.set_pool(pool, self.clock.mono_s())
        shared = self.measure(self.parse(request(opening())))
        for slot, _ in fleet.members:
            fleet.rtt.observe(slot, 20.0 + slot * 0.37, self.clock.mono_s())
            fleet.engine.update(
                slot, EngineSample("vllm", 3.0, 0.0, 0.4, 500_000, 1.7e9), self.clock.mono_s()
            )
            self.index.insert(slot, shared)

    def parse(self, asked: HttpRequest) -> ParsedRequest:
        """A request in canonical form."""
        parser = find_parser(asked.method, asked.path, asked.headers)
        if parser is None or asked.body is None:
            raise EppError("a request that no parser reads")
        return parser.parse(asked.body, asked.headers)

    def measure(self, parsed: ParsedRequest) -> MeasuredPrompt:
        """Its tokens and blocks."""
        return self.hasher.measure(parsed, self.counter)

    def ask(self, parsed: ParsedRequest, prompt: MeasuredPrompt, body_bytes: int) -> Ask:
        """What the picker is asked, as the core builds it."""
        key = affinity_key(parsed, prompt)
        return Ask(
            model=parsed.model,
            prompt=prompt,
            body_bytes=body_bytes,
            max_output_tokens=parsed.max_output_tokens,
            affinity_key=self.hasher.export_name(key) if key else "",
            api=parsed.api,
            stream=parsed.stream,
            text_bytes=len(parsed.canonical),
        )

    def cache(self, body: bytes) -> None:
        """An earlier turn: decided and over, so that its endpoint has it cached."""
        parsed = self.parse(request(body))
        decision = self.picker.pick(
            self.ask(parsed, self.measure(parsed), len(body)), self.clock.mono_s(), 1.7e9
        )
        self.picker.end(decision.id, "stream-end", self.clock.mono_s())


def request(body: bytes) -> HttpRequest:
    """A chat request as the stream hands it to the core."""
    return HttpRequest("POST", HEADERS[":path"], HEADERS, body)


@contextmanager
def recorded() -> Iterator[Recorder]:
    """A recorder that writes to a disk, as configured by default."""
    with TemporaryDirectory(prefix="epp-bench-") as folder:
        hasher = BlockHasher(b"a secret of benchmarks")
        recorder = FileRecorder(Path(folder), settings=Records(folder=folder), hasher=hasher, on_drop=_lost)
        try:
            yield recorder
        finally:
            recorder.close()


def _lost(count: int) -> None:
    print(f"{count} records were lost: the disk does not keep up")
