"""Who is compared, and on which cells: policies in all their variants, and windows of any length.

Owns the list of entries and the shortening of cells. Runs nothing.

The paper's own baselines stand here in two ways: as its router has them, with engine metrics read every 30 s
and live terms in two of them (source [G]), and by engine metrics alone, read every second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from epp.replay.plan import TUNING_SEED
from epp.replay.policy_cells import POLICY_CELLS, PolicyCell
from epp.replay.simulate import PolicyChoice
from epp.replay.tune import TuningTask, tunable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.sim.scenario import FleetSpec

CANDIDATE = "gorgo-ms"

#: Groups of entries. The paper's own baselines as its router has them, and by engine metrics alone; others as
#: their sources publish or ship them; the same with live counters and with tuned weights; ablations of the
#: candidate; yardsticks.
OURS, PAPER, PAPER_SCRAPED, PUBLISHED, LIVE, ABLATION, YARDSTICK = (
    "ours", "paper", "paper, scraped", "published", "live", "ablation", "yardstick"
)  # fmt: skip
#: The paper's routers read engine metrics this often (source [G]).
_PAPER_SCRAPE_S = 30.0
#: As the originals have it by default.
_LLM_D_SCRAPE_S, _LMETRIC_SCRAPE_S = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy as it is run.

    Attributes:
        label: its name in tables.
        group: see above.
        policy: what runs; weights are added where it is tuned.
        tuned: with weights of the tuning loads.
        scrape_s: how often engine metrics are read for it, None for as the cell has it.
    """

    label: str
    group: str
    policy: PolicyChoice
    tuned: bool = False
    scrape_s: float | None = None

    def fleet(self, cell: PolicyCell) -> FleetSpec:
        """The cell's fleet as this entry sees it."""
        if self.scrape_s is None:
            return cell.fleet
        return replace(cell.fleet, scrape_interval_s=self.scrape_s)


def _entry(group: str, name: str, label: str = "", **given: Mapping[str, object]) -> Entry:
    return Entry(label or name, group, PolicyChoice(name, **given))  # type: ignore[arg-type]  # weights and params


_LIVE = (
    _entry(LIVE, "dynamo"),
    _entry(LIVE, "dynamo-softmax"),
    _entry(LIVE, "lmetric"),
    _entry(LIVE, "mooncake"),
    _entry(LIVE, "mooncake", "mooncake learned", params={"rates": "learned"}),
    _entry(LIVE, "preble-e2"),
    _entry(LIVE, "sglang-cache-aware"),
    _entry(LIVE, "sglang-cache-aware-library"),
    _entry(LIVE, "llm-d", "llm-d live", params={"counts": "live"}),
    _entry(LIVE, "llm-d-affinity", "llm-d-affinity live", params={"counts": "live"}),
    _entry(LIVE, "prefix-cache"),
    _entry(LIVE, "prefix-threshold"),
    _entry(LIVE, "prefix-hash"),
    _entry(LIVE, "session-affinity-bounded"),
    _entry(LIVE, "least-load"),
    _entry(LIVE, "least-request"),
    _entry(LIVE, "power-of-two"),
    _entry(LIVE, "session-affinity"),
)
_PUBLISHED = (
    Entry("llm-d", PUBLISHED, PolicyChoice("llm-d"), scrape_s=_LLM_D_SCRAPE_S),
    Entry("llm-d-affinity", PUBLISHED, PolicyChoice("llm-d-affinity"), scrape_s=_LLM_D_SCRAPE_S),
    Entry(
        "lmetric scraped",
        PUBLISHED,
        PolicyChoice("lmetric", params={"counts": "engine"}),
        scrape_s=_LMETRIC_SCRAPE_S,
    ),
    _entry(PUBLISHED, "prefix-threshold", "prefix-threshold scraped", params={"counts": "engine"}),
    _entry(PUBLISHED, "mooncake-static"),
    _entry(PUBLISHED, "round-robin"),
    _entry(PUBLISHED, "random"),
)
_OURS = (
    _entry(OURS, CANDIDATE),
    Entry(f"{CANDIDATE} tuned", OURS, PolicyChoice(CANDIDATE), tuned=True),
    _entry(OURS, "gorgo"),
    Entry("gorgo tuned", OURS, PolicyChoice("gorgo"), tuned=True),
)


_PAPER = (
    _entry(PAPER, "session-affinity-hash256"),
    *(
        Entry(f"{name} 30 s", PAPER, PolicyChoice(name), scrape_s=_PAPER_SCRAPE_S)
        for name in ("least-load", "least-request", "prefix-cache-stale")
    ),
    *(
        _entry(PAPER_SCRAPED, name)
        for name in ("least-load-stale", "least-request-stale", "prefix-cache-stale")
    ),
)
_YARDSTICKS = tuple(_entry(YARDSTICK, name) for name in ("greedy-oracle-ttft", "greedy-oracle-total"))
#: Entries that differ in their default weights alone are the same policy once tuned.
_SAME_TUNED = {"sglang-cache-aware-library"}


def _tuned(entry: Entry) -> Entry:
    return Entry(f"{entry.label} tuned", LIVE, entry.policy, tuned=True)


ENTRIES: tuple[Entry, ...] = (
    *_OURS,
    *_PAPER,
    *_LIVE,
    *(_tuned(entry) for entry in _LIVE if tunable(entry.policy.name) and entry.label not in _SAME_TUNED),
    *_PUBLISHED,
    *_YARDSTICKS,
)
#: For the short run: the baselines that came near the best on development and tuning seeds.
SHORT = (
    *(CANDIDATE, f"{CANDIDATE} tuned", "gorgo", "gorgo tuned"),
    *(entry.label for entry in _PAPER),
    *("lmetric", "mooncake learned", "preble-e2"),
    *("mooncake learned tuned", "preble-e2 tuned", "dynamo tuned", "sglang-cache-aware tuned"),
    "greedy-oracle-total",
)
#: The loads of the short run: chat with caches that forget, busy and idle; long prompts; sessions of agents.
_SHORT_LOADS = ("art-chat ts 1", "art-chat ts 3", "mooncake", "agent sessions")
#: For the wide run: what happens to fleets, other fleets, other engines, wrong beliefs.
WIDE_CELLS = (
    "art-chat ts 1 / three regions / one fails", "mooncake / mixed / one fails",
    "agent sessions / three regions / one fails", "art-chat ts 1 / three regions / one slow",
    "mooncake / mixed / one slow", "agent sessions / mixed / one slow",
    "art-chat ts 1 / one region / steady", "mooncake / one region / steady",
    "art-chat ts 3 / six / steady", "agent sessions / six / steady",
    "art-chat ts 1 / three regions / keeps every token", "art-chat ts 1 / three regions / slow-decode",
    "mooncake / three regions / loses hits", "mooncake / three regions / mixed",
    "mooncake / three regions / slow-decode", "mooncake / three regions / flat",
    "art-chat ts 1 / three regions / RTT +-50 %", "mooncake / three regions / cache half as large",
    "art-chat ts 1 / three regions / rates +-30 %", "mooncake / three regions / an H100 unknown",
    "art-chat ts 1 / three regions / no usage",
    "art-chat ts 1 / three regions / first tokens a second late",
)  # fmt: skip
#: Its rivals: of those with live counters the ones that came nearest on tuning seeds.
WIDE = (CANDIDATE, "lmetric", "mooncake learned tuned", "dynamo tuned")
#: Where a load was not tuned on a fleet, its weights on this one stand in.
_TUNED_ON = "three regions"
#: The candidate with one of its parts changed.
ABLATIONS: tuple[Entry, ...] = (
    _entry(ABLATION, CANDIDATE, "no network term", weights={"network_weight": 0.0}),
    _entry(ABLATION, CANDIDATE, "no upload rounds", params={"upload_rounds": 0.0}),
    _entry(ABLATION, CANDIDATE, "own prefill at 1", weights={"prefill_weight": 1.0}),
    _entry(ABLATION, CANDIDATE, "waiting at 1", weights={"waiting_weight": 1.0}),
    _entry(ABLATION, CANDIDATE, "stall at its bound", weights={"stall_weight": 0.05}),
    _entry(ABLATION, CANDIDATE, "decode at its bound", weights={"decode_weight": 0.2}),
    _entry(ABLATION, CANDIDATE, "no price of sharing", params={"popular": 0.0}),
    _entry(ABLATION, CANDIDATE, "hits as foretold", params={"discount_hits": False}),
    _entry(ABLATION, CANDIDATE, "everybody as urgent", params={"urgency_power": 0.0}),
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Tuned weights by entry label and tuning load."""

    by: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def of(self, entry: Entry, cell: PolicyCell) -> Mapping[str, float] | None:
        """Those of the cell's load on its fleet, else in three regions; None where neither was tuned on."""
        by, (load, fleet) = self.by.get(entry.label, {}), tuning_name(cell).split(" / ")
        return by.get(f"{load} / {fleet}") or by.get(f"{load} / {_TUNED_ON}")


def tuning_name(cell: PolicyCell) -> str:
    """Load and fleet: what happens to a fleet, and what of it is not as believed, nobody tunes for."""
    return " / ".join(cell.name.split(" / ")[:2])


def chosen(entry: Entry, cell: PolicyCell, weights: Weights) -> PolicyChoice | None:
    """What an entry runs on a cell, None where it was not tuned for it."""
    if not entry.tuned:
        return entry.policy
    found = weights.of(entry, cell)
    return None if found is None else replace(entry.policy, weights=dict(found))


def shortened(cell: PolicyCell, seconds: float) -> PolicyCell:
    """The first ``seconds`` of a cell's window, with what happens to its fleet moved to where it was in it.

    Recorded agent sessions start within it and go on to their ends.
    """
    source, pace = cell.cell.source, cell.cell.pace
    whole = source.until_s or (3540.0 * 2 / 3 if source.trace else 1800.0)
    until = min(whole, seconds / pace)
    part = until / whole
    events = tuple(replace(event, at_s=event.at_s * part) for event in cell.fleet.events)
    tuning = cell.cell.tuning
    tuning = None if tuning is None else replace(tuning, until_s=until)
    return replace(
        cell,
        cell=replace(cell.cell, source=replace(source, until_s=until), tuning=tuning),
        fleet=replace(cell.fleet, events=events),
    )


def cells_of(pattern: str, *, core: bool, seconds: float) -> list[PolicyCell]:
    """The cells of a run.

    Args:
        pattern: parts of names, any of them, joined by commas; ``""`` for all, ``wide`` for the wide run's.
        core: only those of the short run.
        seconds: of each window, 0 for the whole.
    """
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    parts = list(WIDE_CELLS) if parts == ["wide"] else parts
    short = [c for c in POLICY_CELLS if c.core and c.group == "matched" and c.name.startswith(_SHORT_LOADS)]
    out = short if core else list(POLICY_CELLS)
    out = [cell for cell in out if not parts or any(part in cell.name for part in parts)]
    return [shortened(cell, seconds) for cell in out] if seconds else out


def tuning_tasks(
    entries: Sequence[Entry], cells: Sequence[PolicyCell], budget: int
) -> list[tuple[str, str, TuningTask]]:
    """(label, tuning load, search) of every tuned entry on every load and steady fleet among the cells."""
    seen: dict[str, PolicyCell] = {}
    for cell in POLICY_CELLS:
        if cell.name.endswith(" / steady"):
            seen[tuning_name(cell)] = cell
    wanted = {tuning_name(cell): cell for cell in cells}
    out = []
    for name, cell in wanted.items():
        steady = seen[name]
        until = cell.cell.source.until_s
        tuning = None if steady.cell.tuning is None else replace(steady.cell.tuning, until_s=until)
        load = replace(steady.cell, name=name, tuning=tuning)
        for entry in entries:
            if entry.tuned:
                task = TuningTask(load, steady.tuning_fleet, entry.policy, budget, seed=TUNING_SEED)
                out.append((entry.label, name, task))
    return out
